"""The direct route: one call from its document to its outcome, started at most once (model-executor 13)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from services.common.logs import error_text, get_logger
from services.model_executor.direct.answer import candidate
from services.model_executor.direct.config import DirectConfig
from services.model_executor.direct.failures import CallRefused, Failure, clean
from services.model_executor.direct.prompt import Call, read_call
from services.model_executor.direct.retries import Attempts
from services.model_executor.direct.store import CallStore, Key, StoreFailed
from services.model_executor.direct.vendors import Vendor
from services.model_executor.outcomes import failure, invalid_request
from services.model_executor.routes import CONFLICT_TEXT, STALE_TEXT, ModelCall, Pending, Settled, fingerprint

LOST_TEXT: Final = "The earlier attempt was lost and may have been billed."
ELSEWHERE_TEXT: Final = "The earlier attempt still runs at another model-executor and may be billed."
STOPPED_TEXT: Final = "The model-executor stopped during the call; the provider may have billed it."


class DirectRoute:
    """Calls providers. `store` None keeps no record over a restart (tests only)."""

    name = "direct"
    recovers = True

    def __init__(
        self,
        config: DirectConfig,
        store: CallStore | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._store = store
        self._attempts = Attempts(config.retry, sleep)
        self._vendors: dict[str, Vendor] = {}
        self._closing = False
        self.limit_ms = config.retry.limit_ms

    def answer(self, call: ModelCall) -> Pending:
        """The call's work; it goes on without callers."""
        return Pending(lambda: self._call(call))

    def closing(self) -> None:
        """From now on a cancelled call is one that this process gave up, not one that a person did."""
        self._closing = True

    async def close(self) -> None:
        """Closes connections and the store."""
        for vendor in self._vendors.values():
            await vendor.close()
        if self._store is not None:
            await self._store.close()

    async def _call(self, call: ModelCall) -> Settled:
        try:
            ready = read_call(call.text, call.effect_id, self._config.select)
        except CallRefused as refused:
            return Settled(failure(refused.code, refused.message, retryable=refused.retryable))
        provider = ready.selected.provider
        if provider.needs_key and provider.key is None:
            text = f"The provider {provider.name} has no key: the variable of its api_key_env is not set."
            return Settled(failure("auth", text, retryable=False))
        key = (call.tenant_id, call.session_id, call.effect_id)
        try:
            known = await self._known(key, call)
            if known is not None:
                return known
            outcome = await self._ask(ready)
        except StoreFailed as error:
            get_logger().error("model_store_failed", error=error_text(error))
            text = "The model-executor's store can't be used; nothing was sent."
            return Settled(failure("transient", text, retryable=True), keep=False)
        except asyncio.CancelledError:
            await self._stopped(key)
            raise
        await self._note(key, outcome)
        return Settled(outcome)

    async def _known(self, key: Key, call: ModelCall) -> Settled | None:
        """What the store has on the call; None when it may start."""
        if self._store is None:
            return None
        begun = await self._store.begin(
            key,
            fingerprint(call),
            call.epoch,
            must_be_known=call.rejoin and not self._config.shared_state,
        )
        match begun.verdict:
            case "fresh":
                return None
            case "kept":
                return Settled(begun.outcome)
            case "conflict":
                return Settled(invalid_request(CONFLICT_TEXT), keep=False)
            case "stale":
                return Settled(invalid_request(STALE_TEXT), keep=False)
            case "elsewhere":
                return Settled(failure("transient", ELSEWHERE_TEXT, retryable=True), keep=False)
            case "lost":
                outcome = failure("transient", LOST_TEXT, retryable=True)
                await self._note(key, outcome)
                return Settled(outcome)

    async def _ask(self, call: Call) -> str:
        secrets = call.selected.provider.secrets
        try:
            vendor = self._vendor(call)
            await vendor.prepared()
            got = await self._attempts.run(vendor.complete, call)
            if isinstance(got, Failure):
                return failure(
                    got.code, got.message, retryable=got.retryable, retry_after_ms=got.retry_after_ms
                )
            return candidate(call, got)
        except CallRefused as refused:
            return failure(refused.code, clean(refused.message, secrets), retryable=refused.retryable)

    def _vendor(self, call: Call) -> Vendor:
        provider = call.selected.provider
        vendor = self._vendors.get(provider.name)
        if vendor is None:
            vendor = Vendor(provider, self._config.retry.idle_timeout_ms / 1000)
            self._vendors[provider.name] = vendor
        return vendor

    async def _note(self, key: Key, outcome: str) -> None:
        """An outcome that can't be written is still given: it is kept in memory."""
        if self._store is None:
            return
        try:
            await self._store.finish(key, outcome)
        except StoreFailed as error:
            get_logger().error("model_store_failed", error=error_text(error))

    async def _stopped(self, key: Key) -> None:
        """The call was cancelled: by a person, who may ask anew, or by the end of this process."""
        if self._store is None:
            return
        with contextlib.suppress(StoreFailed):
            if self._closing:
                await self._store.finish(key, failure("transient", STOPPED_TEXT, retryable=True))
            else:
                await self._store.forget(key)
