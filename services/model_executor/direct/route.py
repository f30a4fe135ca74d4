"""The direct route: one call from its document to its outcome, started at most once (model-executor 13)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from services.common.logs import error_text, get_logger
from services.model_executor.direct.answer import Usage, candidate
from services.model_executor.direct.caps import Cost
from services.model_executor.direct.config import DirectConfig
from services.model_executor.direct.failures import CallRefused, Failure, clean
from services.model_executor.direct.media import Fetcher
from services.model_executor.direct.prompt import Call, read_call
from services.model_executor.direct.retries import Attempts
from services.model_executor.direct.rows import Key
from services.model_executor.direct.store import CallStore, StoreFailed, Wanted
from services.model_executor.direct.vendors import Vendor
from services.model_executor.outcomes import failure, invalid_request
from services.model_executor.routes import (
    CONFLICT_TEXT,
    STALE_TEXT,
    ModelCall,
    Pending,
    Place,
    Settled,
    fingerprint,
)

LOST_TEXT: Final = "The earlier attempt was lost and may have been billed."
ELSEWHERE_TEXT: Final = "The earlier attempt still runs at another model-executor and may be billed."
STOPPED_TEXT: Final = "The model-executor stopped during the call; the provider may have billed it."
_BYTES_PER_TOKEN: Final = 4


class DirectRoute:
    """Calls providers. `store` None keeps no record over a restart and knows no caps (tests only)."""

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
        self._fetcher = Fetcher(config.media, config.retry, sleep)
        self._vendors: dict[str, Vendor] = {}
        self._closing = False
        self.limit_ms = config.retry.limit_ms + self._fetcher.limit_ms

    def answer(self, call: ModelCall) -> Pending:
        """The call's work; it goes on without callers."""
        return Pending(lambda: self._call(call))

    def listens(self, address: str) -> None:
        """Where this process is reached."""
        if self._store is not None:
            self._store.listens(address)

    def closing(self) -> None:
        """From now on a cancelled call is one that this process gave up, not one that a person did."""
        self._closing = True

    async def close(self) -> None:
        """Closes connections and the store."""
        for vendor in self._vendors.values():
            await vendor.close()
        await self._fetcher.close()
        if self._store is not None:
            await self._store.close()

    async def _call(self, call: ModelCall) -> Settled:
        key = (call.tenant_id, call.session_id, call.effect_id)
        digest, size = fingerprint(call), len(call.text)
        try:
            ready = read_call(call.text, call.effect_id, self._config.select)
            call = msgspec.structs.replace(call, text="")
            references = ready.references()
            if call.rejoin or references:
                # What is known already needs neither key nor files.
                known = await self._known(key, call, digest, _estimate(ready, size, 0), start=False)
                if known is not None:
                    return known
            self._check(ready)
            ready.files = await self._fetcher.fetch(call.session_id, references)
            known = await self._known(key, call, digest, _estimate(ready, size, 0), start=True)
            if known is not None:
                return known
        except CallRefused as refused:
            return Settled(failure(refused.code, refused.message, retryable=refused.retryable))
        except StoreFailed as error:
            get_logger().error("model_store_failed", error=error_text(error))
            text = "The model-executor's store can't be used; nothing was sent."
            return Settled(failure("transient", text, retryable=True), keep=False)
        except asyncio.CancelledError:
            await self._stopped(key)
            raise
        try:
            outcome, cost = await self._ask(ready, size)
        except asyncio.CancelledError:
            await self._stopped(key)
            raise
        await self._note(key, outcome, cost)
        return Settled(outcome)

    def _check(self, call: Call) -> None:
        """Raises CallRefused for a call that can't be sent, or not be counted."""
        provider, selected = call.selected.provider, call.selected
        if provider.needs_key and provider.key is None:
            raise CallRefused(
                "auth",
                f"The provider {provider.name} has no key: the variable of its api_key_env is not set.",
            )
        if self._config.has_usd_cap and selected.info.price is None:
            raise CallRefused(
                "invalid_request",
                f"The model {provider.name}/{selected.model[:200]} has no price, and a cap in USD is set: give it a "
                "price in the model configuration.",
            )

    async def _known(
        self, key: Key, call: ModelCall, digest: bytes, estimate: Cost, *, start: bool
    ) -> Settled | None:
        """What the store has on the call; None when it may start."""
        if self._store is None:
            return None
        begun = await self._store.begin(
            Wanted(
                key,
                digest,
                call.epoch,
                turn=call.turn_id,
                estimate=estimate,
                must_be_known=call.rejoin and not self._config.shared_state,
                start=start,
            )
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
            case "capped":
                return Settled(failure("budget_exhausted", begun.reason, retryable=False))
            case "elsewhere":
                text = failure("transient", ELSEWHERE_TEXT, retryable=True)
                return Settled(text, keep=False, elsewhere=Place(begun.instance, begun.address))
            case "lost":
                outcome = failure("transient", LOST_TEXT, retryable=True)
                await self._note(key, outcome)
                return Settled(outcome)

    async def _ask(self, call: Call, size: int) -> tuple[str, Cost | None]:
        """The outcome of a call whose document has this size, and what it cost."""
        secrets = call.selected.provider.secrets
        usage: Usage | None = None
        try:
            vendor = self._vendor(call)
            await vendor.prepared()
            got = await self._attempts.run(vendor.complete, call)
            if isinstance(got, Failure):
                text = failure(
                    got.code, got.message, retryable=got.retryable, retry_after_ms=got.retry_after_ms
                )
                return text, None
            usage = got.usage
            outcome = candidate(call, got)
            cost = _cost(call, usage) if usage is not None else _estimate(call, size, len(outcome))
            return outcome, cost
        except CallRefused as refused:
            spent = refused.spent or usage
            text = failure(refused.code, clean(refused.message, secrets), retryable=refused.retryable)
            return text, None if spent is None else _cost(call, spent)

    def _vendor(self, call: Call) -> Vendor:
        provider = call.selected.provider
        vendor = self._vendors.get(provider.name)
        if vendor is None:
            vendor = Vendor(provider, self._config.retry.idle_timeout_ms / 1000)
            self._vendors[provider.name] = vendor
        return vendor

    async def _note(self, key: Key, outcome: str, cost: Cost | None = None) -> None:
        """An outcome that can't be written is still given: it is kept in memory."""
        if self._store is None:
            return
        try:
            await self._store.finish(key, outcome, cost)
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


def _cost(call: Call, usage: Usage) -> Cost:
    return Cost(usage.usd(call.selected.info.prices), usage.total)


def _estimate(call: Call, size: int, answer_size: int) -> Cost:
    """What a call costs where nobody says it: four bytes are a token."""
    price = call.selected.info.prices
    asked, answered = size / _BYTES_PER_TOKEN, answer_size / _BYTES_PER_TOKEN
    return Cost((asked * price.input + answered * price.output) / 1e6, asked + answered)
