"""What a model-executor adds to the call of a provider.

A provider that answers at once is called in two ways that take turns call by call: by the bare client (on
route `direct` the vendor's own SDK with its streaming loop, on route `gate` one HTTP request on a connection of
its own), and through a model-executor in a process of its own. Sizes are those of the call; answers have 1 KiB.

Figures, in milliseconds, for each size: `direct_call_ms_*`, `gate_call_ms_*`, and what is added:
`direct_added_ms_*`, `gate_added_ms_*` (aim: at most 3 at p50 for 64 KiB).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import openai

from bench.environment import run_on_uvloop, stack_plan
from bench.model_route import call_of
from bench.model_stage import DIRECT, GATE, TOKEN, start_executor, start_provider
from bench.result import BenchResult
from bench.turns import Variant, p50, p99, take_turns
from cli.stack import StackPlan

SIZES: Final = {"1KiB": 1024, "64KiB": 64 * 1024, "1MiB": 1024 * 1024}
ANSWER_BYTES: Final = 1024
_SHARE: Final = {"1KiB": 1.0, "64KiB": 1.0, "1MiB": 0.1}
_WARM_UP: Final = 30
BOUND_S: Final = 600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument(
        "--calls", type=int, default=400, help="calls of 64 KiB per way (default %(default)s)"
    )
    parser.add_argument("--sizes", default=",".join(SIZES), help="sizes to measure (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    with stack_plan([]) as plan:
        return run_on_uvloop(lambda: _measure(plan, flags.sizes.split(","), flags.calls))


async def _measure(plan: StackPlan, sizes: list[str], calls: int) -> BenchResult:
    figures: dict[str, float] = {}
    baseline: dict[str, float] = {}
    ratio: dict[str, float] = {}
    async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S):
        provider = await start_provider(stack, ANSWER_BYTES)
        sdk = await stack.enter_async_context(sdk_client(provider.url))
        http = await stack.enter_async_context(bare_http())
        for route, bare in ((DIRECT, _sdk(sdk)), (GATE, _post(http, provider.url))):
            executor, _ = await start_executor(stack, plan, route, provider)
            for size in sizes:
                text = call_of(SIZES[size]).decode()

                async def through(text: str = text) -> None:
                    assert len(await executor.call(text)) > ANSWER_BYTES  # noqa: B023

                ways: dict[str, Variant] = {"bare": bare(text), "call": through}
                count = max(5, round(calls * _SHARE[size]))
                samples = await take_turns(ways, count, min(_WARM_UP, count // 4 + 1))
                for name, of in (("p50", p50), ("p99", p99)):
                    whole, floor = of(samples["call"]), of(samples["bare"])
                    figures[f"{route}_call_ms_{name}_{size}"] = whole
                    figures[f"{route}_added_ms_{name}_{size}"] = whole - floor
                    baseline[f"{route}_bare_ms_{name}_{size}"] = floor
                    ratio[f"{route}_over_bare_{name}_{size}"] = whole / floor
    return BenchResult("model_overhead", figures, baseline, ratio)


def sdk_client(url: str) -> openai.AsyncOpenAI:
    """The vendor's SDK as people use it, without retries."""
    return openai.AsyncOpenAI(api_key="bench", base_url=f"{url}/v1", max_retries=0)


def bare_http() -> aiohttp.ClientSession:
    """A client that makes a connection for each request, as the gate's contract asks."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def stream_once(sdk: openai.AsyncOpenAI, prompt: str) -> int:
    """One streamed call by the SDK's own loop; the length of its text."""
    pieces: list[str] = []
    stream: Any = await sdk.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
    return len("".join(pieces))


def _sdk(sdk: openai.AsyncOpenAI) -> Callable[[str], Variant]:
    def of(text: str) -> Variant:
        async def bare() -> None:
            assert await stream_once(sdk, text) == ANSWER_BYTES

        return bare

    return of


def _post(http: aiohttp.ClientSession, url: str) -> Callable[[str], Variant]:
    def of(text: str) -> Variant:
        body = b'{"effectId":"e","invocationId":"i","call":' + text.encode() + b"}"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

        async def bare() -> None:
            async with http.post(f"{url}/nylorun/v1/model-calls", data=body, headers=headers) as answer:
                assert len(await answer.read()) > ANSWER_BYTES

        return bare

    return of
