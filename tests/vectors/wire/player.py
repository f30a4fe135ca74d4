"""Goes through the steps of a recording and judges what the harness sends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from gateway.attachment import Introduction
from gateway.engine.factory import make_engine
from gateway.fleet import AlwaysReady
from gateway.link import Link as HarnessLink
from gateway.runs.host import RunHost
from gateway.timing import Timing
from gateway.websocket import WebSocketDialer
from protocol import jsjson
from tests.vectors.wire.core_double import TOKEN, CoreDouble, Link
from tests.vectors.wire.equality import difference, same, without
from tests.vectors.wire.executors import Stage

WAIT_S = 3.0
"""How long a frame, a connection or a close may take."""

SETTLE_S = 0.01
"""How long something unexpected is waited for at the end."""

TIMING = Timing(backoff_min=0.005, backoff_max=0.02, lease_retry=0.01, wind_down=1.0, close_handshake=1.0)
STOP_S = 2.0

_FREE_METHODS = frozenset({"lease", "lease.renew"})


class Mismatch(Exception):
    """The harness did something else than the recording."""


async def play(recording: dict[str, Any]) -> None:
    """Plays one recording. Raises Mismatch."""
    listed = {step["harness"].get("m") for step in recording["steps"] if "harness" in step}
    auto = {method: answer for method, answer in recording["auto"].items() if method not in listed}
    core = CoreDouble(auto)
    stage = Stage(recording["setup"])
    await core.start()
    host = RunHost(stage.executors(), make_engine, TIMING)  # type: ignore[arg-type]

    async def credentials() -> str:
        return TOKEN

    capability = recording["setup"]["workspace"]
    harness = HarnessLink(
        core.url,
        host,
        credentials=credentials,
        dial=WebSocketDialer(TIMING),
        services=AlwaysReady(),
        introduction=Introduction("harness", "0", None if capability is None else ("virtual",)),
    )
    serving = asyncio.create_task(harness.run())
    player = _Player(core, stage, harness)
    try:
        for number, step in enumerate(recording["steps"]):
            try:
                await player.step(step)
            except Mismatch as mismatch:
                raise Mismatch(f"step {number}: {mismatch}") from None
        await player.end()
    finally:
        await player.close()
        await harness.stop(0.5)
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.timeout(WAIT_S):
                await serving
        await host.tasks.close(1.0)
        await core.close()


class _Player:
    def __init__(self, core: CoreDouble, stage: Stage, harness: HarnessLink) -> None:
        self._core = core
        self._stage = stage
        self._harness = harness
        self._names: dict[str, int] = {}
        self._next_core_id = 1
        self._link: Link | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def step(self, step: dict[str, Any]) -> None:
        kinds = {
            "connect": self._connect,
            "harness": self._expect,
            "core": self._send,
            "pause": self._pause,
            "release": self._release,
            "cut": self._cut,
            "stop": self._stop,
            "closed": self._closed,
            "note": self._note,
        }
        kind = next(name for name in kinds if name in step)
        await kinds[kind](step)

    async def end(self) -> None:
        """Nothing is left but one outstanding lease."""
        await asyncio.sleep(SETTLE_S)
        if self._link is None:
            return
        left = [frame for frame in self._link.inbox if frame.get("m") != "lease"]
        leases = len(self._link.inbox) - len(left)
        if left or leases > 1:
            raise Mismatch(f"at the end {leases} leases and {_short(left)} are left")

    async def close(self) -> None:
        if self._stopping is not None:
            await self._stopping

    # Steps

    async def _connect(self, step: dict[str, Any]) -> None:
        number = step["connect"]
        await self._until(lambda: len(self._core.links) >= number, f"no connection {number}")
        self._link = self._core.links[number - 1]

    async def _expect(self, step: dict[str, Any]) -> None:
        link = self._current()
        expected, vary = step["harness"], step.get("vary", ())
        found: list[dict[str, Any]] = []

        def arrived() -> bool:
            match = next((frame for frame in link.inbox if self._fits(expected, frame, vary)), None)
            if match is not None:
                found.append(match)
            return match is not None

        await self._until(arrived, "", lambda: self._why_not(expected, vary))
        frame = found[0]
        run = _run_of(frame)
        for earlier in link.inbox[: link.inbox.index(frame)]:
            if run is not None and _run_of(earlier) == run:
                raise Mismatch(f"{_short(earlier)} came before {_short(frame)}")
        link.inbox.remove(frame)
        if isinstance(expected["id"], str):
            self._names.setdefault(expected["id"], frame["id"])

    def _fits(self, expected: dict[str, Any], frame: dict[str, Any], vary: list[str]) -> bool:
        name = expected.get("id")
        if isinstance(name, str) and name not in self._names:
            wanted = {**expected, "id": frame.get("id")}
        else:
            wanted = self._named(expected)
        return same(without(wanted, vary), without(frame, vary))

    def _why_not(self, expected: dict[str, Any], vary: list[str]) -> str:
        inbox = self._current().inbox
        for frame in inbox:
            if frame.get("m") == expected.get("m") and frame.get("t") == expected.get("t"):
                wanted = without({**expected, "id": frame.get("id")}, vary)
                return f"expected {_short(expected)}; {difference(wanted, without(frame, vary))}"
        return f"expected {_short(expected)}, the inbox is {_short(inbox)}"

    async def _send(self, step: dict[str, Any]) -> None:
        frame, socket = step["core"], self._current().socket
        if not isinstance(frame, dict):
            await socket.send(jsjson.dumps(frame))
        elif "rawText" in frame:
            await socket.send(frame["rawText"])
        elif "rawBinary" in frame:
            await socket.send(bytes.fromhex(frame["rawBinary"]))
        else:
            name = frame.get("id")
            if isinstance(name, str) and name not in self._names:
                self._names[name] = self._next_core_id
                self._next_core_id += 1
            await socket.send(jsjson.dumps(self._named(frame)))

    async def _pause(self, step: dict[str, Any]) -> None:
        await asyncio.sleep(step["pause"] / 1000)

    async def _release(self, step: dict[str, Any]) -> None:
        self._stage.gates[step["release"]].set()

    async def _cut(self, step: dict[str, Any]) -> None:
        self._current().socket.transport.abort()

    async def _stop(self, step: dict[str, Any]) -> None:
        self._stopping = asyncio.create_task(self._harness.stop(STOP_S))

    async def _closed(self, step: dict[str, Any]) -> None:
        link, expected = self._current(), step["closed"]
        await self._until(lambda: link.closed is not None, "the connection is still open")
        assert link.closed is not None
        code, reason = link.closed
        if code != expected["code"] or not _same_reason(reason, expected["reason"]):
            raise Mismatch(f"closed {code} {reason!r}, expected {expected}")

    async def _note(self, step: dict[str, Any]) -> None:
        note = step["note"]
        if "gateCancel" in note:
            effect_id = note["gateCancel"]
            await self._until(lambda: effect_id in self._stage.cancelled, f"no cancel of {effect_id}")
        if "stopped" in note:
            method = note["stopped"]
            await self._until(lambda: self._stage.stopped[method] > 0, f"{method} was not stopped")

    # Helpers

    def _current(self) -> Link:
        if self._link is None:
            raise Mismatch("there is no connection")
        return self._link

    def _named(self, frame: dict[str, Any]) -> dict[str, Any]:
        name = frame.get("id")
        return {**frame, "id": self._names[name]} if isinstance(name, str) else frame

    async def _until(
        self, holds: Callable[[], bool], fault: str, explain: Callable[[], str] | None = None
    ) -> None:
        async def polled() -> None:
            # What executors note wakes nobody, so that is looked at again and again.
            while not holds():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01), self._core.changed:
                        await self._core.changed.wait()

        try:
            async with asyncio.timeout(WAIT_S):
                await polled()
        except TimeoutError:
            raise Mismatch(explain() if explain is not None else fault) from None


def _run_of(frame: dict[str, Any]) -> str | None:
    """The run whose order a frame keeps; None for frames that are free."""
    if frame.get("t") != "req" or frame.get("m") in _FREE_METHODS:
        return None
    run = frame["p"].get("runId")
    return run if isinstance(run, str) else None


def _same_reason(reason: str, expected: str) -> bool:
    prefix = "invalid frame: "
    return reason.startswith(prefix) if expected.startswith(prefix) else reason == expected


def _short(value: Any) -> str:
    return jsjson.dumps(value)[:600]
