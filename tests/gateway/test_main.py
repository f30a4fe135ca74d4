"""The whole gateway over real sockets, against a core of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from gateway.fleet import AlwaysReady
from gateway.main import run
from gateway.settings import GatewaySettings
from gateway.timing import Timing
from protocol import jsjson
from services.common.process import StartFailed
from services.common.version import version
from tests.gateway.support import HELLO, TOKEN, FakeExecutors, events_of, for_ever, logs, until_aborted
from tests.gateway.test_real_engine import EXECUTE, turn

BOUND_S = 20.0
TIMING = Timing(backoff_min=0.01, backoff_max=0.02, close_handshake=0.3, leftovers=1.0)


class SmallCore:
    """Grants one turn, has its model call executed, and keeps what it was told."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.closed: asyncio.Future[tuple[int | None, str | None]] = (
            asyncio.get_running_loop().create_future()
        )
        self.done = asyncio.Event()
        self.leases = [turn()]

    async def serve(self, socket_: ServerConnection) -> None:
        async for text in socket_:
            frame: Any = jsjson.loads(text)
            if frame["t"] != "req":
                continue
            self.requests.append(frame)
            answer = self._answer(frame)
            if answer is not None:
                answered = jsjson.dumps({"t": "res", "id": frame["id"], "ok": True, "r": answer})
                # The listener may be closing while a run still reports.
                with contextlib.suppress(ConnectionClosed):
                    await socket_.send(answered)
        if not self.closed.done():
            self.closed.set_result((socket_.close_code, socket_.close_reason))

    def _answer(self, frame: dict[str, Any]) -> Any:
        match frame["m"]:
            case "hello":
                return HELLO
            case "lease":
                return self.leases.pop(0) if self.leases else None
            case "effect.intent":
                return EXECUTE
            case "effect.outcome":
                return {"status": "completed", "outcome": {"value": frame["p"]["value"]}}
            case _:
                self.done.set()
                return {}


@contextlib.asynccontextmanager
async def core_and_settings(**changes: Any) -> AsyncIterator[tuple[SmallCore, GatewaySettings]]:
    core = SmallCore()
    async with serve(core.serve, "127.0.0.1", 0, ping_interval=None, close_timeout=0.3) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        settings = {"health_port": free_port(), "stop_grace_ms": 500, **changes}
        yield core, GatewaySettings(f"ws://u:secret@127.0.0.1:{port}/nylorun/harness/v1", TOKEN, **settings)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def health(settings: GatewaySettings) -> Any:
    url = f"http://127.0.0.1:{settings.health_port}/health"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.json()


async def test_a_turn_goes_through_and_a_stop_ends_cleanly():
    fake, stop, connected = FakeExecutors(), asyncio.Event(), asyncio.Event()
    async with core_and_settings() as (core, settings):
        with logs() as captured:
            serving = asyncio.create_task(
                run(settings, fake.all(), AlwaysReady(), stop, connected.set, timing=TIMING)
            )
            async with asyncio.timeout(BOUND_S):
                await connected.wait()
                await core.done.wait()
                assert await health(settings) == {
                    "status": "ok",
                    "service": "nylorun-harness",
                    "connected": True,
                }
                stop.set()
                await serving
                assert await core.closed == (1000, "harness stopped")
    hello = core.requests[0]["p"]
    assert (hello["name"], hello["version"]) == ("harness", f"0.17.0-beta+whippletree.{version()}")
    methods = [frame["m"] for frame in core.requests if frame["m"] not in ("hello", "lease")]
    assert methods == ["effect.intent", "effect.outcome", "turn.completed"]
    names = events_of(captured)
    assert set(names) >= {"host_stack_config", "harness_ready", "harness_connected"}
    assert "secret" not in str(captured)
    assert TOKEN not in str(captured)


async def test_a_run_that_ignores_the_stop_is_left_behind_and_its_task_ended():
    fake, stop = FakeExecutors(), asyncio.Event()
    fake.behaviours["t1:0:model:invocation_t1_0_1"] = for_ever
    async with core_and_settings(stop_grace_ms=100) as (core, settings):
        before = asyncio.all_tasks()
        serving = asyncio.create_task(run(settings, fake.all(), AlwaysReady(), stop, timing=TIMING))
        async with asyncio.timeout(BOUND_S):
            await fake.started["t1:0:model:invocation_t1_0_1"].wait()
            stop.set()
            await serving
            await core.closed
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        assert {task for task in left if "websockets" not in repr(task)} == set()


@pytest.mark.spec("operations:13.15")
async def test_a_taken_health_port_is_one_line_that_names_the_setting():
    fake, stop = FakeExecutors(), asyncio.Event()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with core_and_settings(health_port=taken.getsockname()[1]) as (_, settings):
            with pytest.raises(StartFailed) as failed:
                async with asyncio.timeout(BOUND_S):
                    await run(settings, fake.all(), AlwaysReady(), stop, timing=TIMING)
    assert "NYLORUN_HARNESS_HEALTH_PORT" in str(failed.value)
    assert "\n" not in str(failed.value)


async def test_the_view_is_served_only_when_it_is_asked_for_and_its_taken_port_is_named():
    fake, stop, connected = FakeExecutors(), asyncio.Event(), asyncio.Event()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with core_and_settings(view_port=taken.getsockname()[1]) as (_, settings):
            with pytest.raises(StartFailed, match="WHIPPLETREE_GATEWAY_VIEW_PORT"):
                async with asyncio.timeout(BOUND_S):
                    await run(settings, fake.all(), AlwaysReady(), stop, timing=TIMING)
    async with core_and_settings(view_port=free_port()) as (core, settings):
        serving = asyncio.create_task(
            run(settings, fake.all(), AlwaysReady(), stop, connected.set, timing=TIMING)
        )
        async with asyncio.timeout(BOUND_S):
            await connected.wait()
            await core.done.wait()
            url = f"http://127.0.0.1:{settings.view_port}/view"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                seen = await answer.json()
            stop.set()
            await serving
    assert seen["gateway"]["connected"] is True


@pytest.mark.spec("harness-api:10.1")
async def test_without_a_core_the_process_stays_up_and_says_that_it_is_not_connected():
    fake, stop = FakeExecutors(), asyncio.Event()
    settings = GatewaySettings(f"ws://127.0.0.1:{free_port()}/x", TOKEN, health_port=free_port())
    with logs() as captured:
        serving = asyncio.create_task(run(settings, fake.all(), AlwaysReady(), stop, timing=TIMING))
        async with asyncio.timeout(BOUND_S):
            while events_of(captured).count("harness_connect_failed") < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert (await health(settings))["connected"] is False
            stop.set()
            await serving


async def test_a_cancelled_gateway_leaves_nothing_running():
    fake, stop, connected = FakeExecutors(), asyncio.Event(), asyncio.Event()
    async with core_and_settings() as (_, settings):
        before = asyncio.all_tasks()
        serving = asyncio.create_task(
            run(settings, fake.all(), AlwaysReady(), stop, connected.set, timing=TIMING)
        )
        async with asyncio.timeout(BOUND_S):
            await connected.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        assert {task for task in left if "websockets" not in repr(task)} == set()


@pytest.mark.spec("operations:13.13")
async def test_health_follows_the_connection_before_during_and_after_it():
    fake, stop, connected = FakeExecutors(), asyncio.Event(), asyncio.Event()
    port, health_port = free_port(), free_port()
    settings = GatewaySettings(f"ws://127.0.0.1:{port}/x", TOKEN, health_port=health_port)
    core = SmallCore()
    with logs() as captured:
        serving = asyncio.create_task(
            run(settings, fake.all(), AlwaysReady(), stop, connected.set, timing=TIMING)
        )
        async with asyncio.timeout(BOUND_S):
            while "harness_connect_failed" not in events_of(captured):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert (await health(settings))["connected"] is False
            async with serve(core.serve, "127.0.0.1", port, ping_interval=None, close_timeout=0.1):
                await connected.wait()
                assert (await health(settings))["connected"] is True
            await core.closed
            while "harness_connection_lost" not in events_of(captured):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert (await health(settings))["connected"] is False
            stop.set()
            await serving


@pytest.mark.spec("operations:13.17")
async def test_a_stop_gives_every_live_run_back_before_it_closes():
    fake, stop = FakeExecutors(), asyncio.Event()
    fake.model_recovers = True
    effect_ids = [f"t{number}:0:model:invocation_t{number}_0_1" for number in range(3)]
    fake.behaviours |= dict.fromkeys(effect_ids, until_aborted)
    async with core_and_settings() as (core, settings):
        core.leases = [turn_of(number) for number in range(3)]
        serving = asyncio.create_task(run(settings, fake.all(), AlwaysReady(), stop, timing=TIMING))
        async with asyncio.timeout(BOUND_S):
            for effect_id in effect_ids:
                await fake.started[effect_id].wait()
            stop.set()
            await serving
            assert await core.closed == (1000, "harness stopped")
    released = [frame["p"] for frame in core.requests if frame["m"] == "lease.release"]
    assert sorted(release["runId"] for release in released) == ["r0", "r1", "r2"]
    assert {release["reason"] for release in released} == {"shutdown"}


def turn_of(number: int) -> dict[str, Any]:
    answer = turn()
    answer["run"] |= {"runId": f"r{number}", "sessionId": f"s{number}", "turnId": f"t{number}"}
    answer["input"]["checkpoint"] |= {"sessionId": f"s{number}", "turnId": f"t{number}"}
    return answer
