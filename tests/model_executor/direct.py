"""A direct route to provider doubles, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.route import DirectRoute
from services.model_executor.direct.store import CallStore
from services.model_executor.executor import ModelExecutor
from tests.common.support import BOUND_S
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble
from tests.leaks.watch import secret
from tests.model_executor.support import call_of, document, user

KEY = secret("sk-very-secret-key-0123456789")
HI = document(user("hi"))


def config_text(
    origin: str, api: str, *, more: str = "", model: str = "", retry: str = "", after: str = ""
) -> str:
    return f"""
default = "p/m"
[providers.p]
api = "{api}"
base_url = "{origin}{"/v1" if api == "openai-completions" else ""}"
api_key_env = "KEY"
{more}
[providers.p.models.m]
{model}
[retry]
base_delay_ms = 1
{retry}
{after}
"""


class Direct:
    """An executor on the direct route and the provider behind it."""

    def __init__(self, double: ProviderDouble, executor: ModelExecutor) -> None:
        self.double, self.executor = double, executor
        self.waits: list[float] = []

    async def ask(self, text: str = HI, **changes: Any) -> Any:
        async with asyncio.timeout(BOUND_S):
            return json.loads(await self.executor.call(call_of(text, **changes)))


@contextlib.asynccontextmanager
async def direct(
    api: str,
    *replies: Any,
    store: CallStore | None = None,
    key: str = KEY,
    clock: Any = None,
    **parts: Any,
) -> AsyncIterator[Direct]:
    async with serving(ProviderDouble(replies=list(replies))) as double:
        config = read_config(config_text(double.origin, api, **parts), {"KEY": key})
        if store is not None:
            store._caps = config.caps
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        route = DirectRoute(config, store, sleep=sleep)
        executor = ModelExecutor(route) if clock is None else ModelExecutor(route, clock=clock)
        made = Direct(double, executor)
        made.waits = waits
        try:
            yield made
        finally:
            await executor.close()


def openai(*replies: Any, **parts: Any) -> Any:
    return direct("openai-completions", *replies, **parts)


def messages(*replies: Any, **parts: Any) -> Any:
    return direct("anthropic-messages", *replies, **parts)


def of(outcome: Any) -> tuple[str, bool]:
    assert outcome["kind"] == "failed", outcome
    return outcome["code"], outcome["retryable"]
