"""The attempts of one direct call (model-executor 13.5)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.common.logs import get_logger
from services.model_executor.direct.answer import Gathered
from services.model_executor.direct.config import Retry
from services.model_executor.direct.failures import (
    CallRefused,
    Failure,
    ProviderFailed,
    clean,
    failure_of,
)
from services.model_executor.direct.prompt import Call

Attempt = Callable[[Call], Awaitable[Gathered]]


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes attempts until one answers or none may follow. `sleep` (seconds) is injected for tests."""

    retry: Retry
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self, attempt: Attempt, call: Call) -> Gathered | Failure:
        """The answer, or the last failure. Raises CallRefused."""
        retry, secrets = self.retry, call.selected.provider.secrets
        number = 0
        while True:
            number += 1
            failure = await self._one(attempt, call, secrets)
            if not isinstance(failure, Failure):
                return failure
            if not failure.again or number >= retry.attempts:
                return failure
            wait = failure.retry_after_ms
            if wait is not None and wait > retry.max_retry_after_ms:
                return failure
            if wait is None:
                wait = int(retry.base_delay_ms * 2 ** (number - 1) * (1 - random.random() / 4))
            get_logger().info(
                "model_attempt_failed",
                effectId=call.effect_id,
                code=failure.code,
                attempt=number,
                waitMs=wait,
            )
            await self.sleep(wait / 1000)

    async def _one(self, attempt: Attempt, call: Call, secrets: tuple[str, ...]) -> Gathered | Failure:
        try:
            async with asyncio.timeout(self.retry.request_timeout_ms / 1000):
                return await attempt(call)
        except TimeoutError:
            failed = ProviderFailed("timeout", "The provider did not answer in time.")
        except ProviderFailed as error:
            failed = error
        except CallRefused:
            raise
        except Exception as error:  # noqa: BLE001  (whatever a provider sends is an outcome)
            get_logger().error("model_attempt_broke", effectId=call.effect_id, error=type(error).__name__)
            failed = ProviderFailed("other", clean(f"The call failed: {error}", secrets))
        return failure_of(failed, secrets, time.time())
