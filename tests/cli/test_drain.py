"""`whippletree drain` against a gateway's port: what it tells, and when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from cli.drain import DONE, NOT_DONE, DrainFailed, Lines, _drain
from cli.main import run
from gateway.fleet import UnknownReplica
from gateway.health import HealthPort
from tests.gateway.test_health import FakeLink, FakeServices

CALL = {"kind": "mcp", "sessionId": "s1", "effectId": "e1", "phase": "running", "ageMs": 90_000}


class Fleet:
    """Two replicas; the first one's call ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.told = asyncio.Event()
        self.done = asyncio.Event()
        self.second: dict[str, Any] = {"target": "b:2", "inFlight": []}

    def services(self) -> dict[str, Any]:
        return {}

    async def drain(self, service: str, target: str | None) -> AsyncIterator[dict[str, Any]]:
        if service == "nobody":
            raise UnknownReplica("There is no service nobody.")
        self.asked.append((service, target))
        yield {"target": "a:1", "inFlight": [CALL]}
        self.told.set()
        await self.done.wait()
        yield {"target": "a:1", "inFlight": []}
        yield self.second


@pytest.fixture
async def made() -> AsyncIterator[tuple[str, Fleet, FakeLink]]:
    fleet, link = Fleet(), FakeLink()
    port = HealthPort(0, link, FakeServices(), fleet)
    port.drain_period_s = 0.01
    await port.open()
    try:
        yield f"http://127.0.0.1:{port.bound_port}", fleet, link
    finally:
        fleet.done.set()
        await port.close()


async def test_waiting_ends_when_nothing_runs_on_any_replica(made: Any) -> None:
    url, fleet, _ = made
    steps: list[dict[str, Any]] = []
    waiting = asyncio.create_task(_drain(url, "mcp-pool", None, steps.append, wait=True, within_s=None))
    await asyncio.wait_for(fleet.told.wait(), 10)
    assert not waiting.done()
    fleet.done.set()
    assert await asyncio.wait_for(waiting, 10) == DONE
    assert [(step["target"], len(step["inFlight"])) for step in steps] == [("a:1", 1), ("a:1", 0), ("b:2", 0)]


async def test_without_waiting_it_is_over_once_the_replica_is_told(made: Any) -> None:
    url, fleet, _ = made
    steps: list[dict[str, Any]] = []
    assert await _drain(url, "mcp-pool", "a:1", steps.append, wait=False, within_s=None) == DONE
    assert fleet.asked == [("mcp-pool", "a:1")]
    assert len(steps) == 1


async def test_work_that_is_left_when_the_time_is_over_is_said(
    made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _, _ = made
    assert await _drain(url, "mcp-pool", None, lambda _: None, wait=True, within_s=0.3) == NOT_DONE
    assert "1 still run" in capsys.readouterr().err


async def test_a_replica_that_can_not_be_asked_is_no_success(made: Any) -> None:
    url, fleet, _ = made
    fleet.second = {"target": "b:2", "error": "The replica can't be asked to drain (UNAVAILABLE)."}
    fleet.done.set()
    assert await _drain(url, "mcp-pool", None, lambda _: None, wait=True, within_s=None) == NOT_DONE


async def test_a_gateway_drains_itself_until_its_runs_are_over(made: Any) -> None:
    url, _, link = made
    waiting = asyncio.create_task(_drain(url, "harness", None, lambda _: None, wait=True, within_s=None))
    await asyncio.wait_for(link.drained.wait(), 10)
    assert not waiting.done()
    link.runs.clear()
    assert await asyncio.wait_for(waiting, 10) == DONE


async def test_what_the_gateway_refuses_is_shown_in_its_words(made: Any) -> None:
    url, _, _ = made
    with pytest.raises(DrainFailed, match="There is no service nobody"):
        await _drain(url, "nobody", None, lambda _: None, wait=True, within_s=None)


def test_no_gateway_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain", "--gateway", "http://127.0.0.1:1"]) == 2
    assert "No gateway answers at http://127.0.0.1:1" in capsys.readouterr().err


def test_each_piece_of_work_is_named_once_with_its_session_and_since_when() -> None:
    written: list[str] = []
    lines = Lines(datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC), written.append)
    for running in ([CALL], [CALL], []):
        lines.show({"target": "a:1", "inFlight": running})
    lines.show({"service": "harness", "running": [{"runId": "r\x1b[0m", "sessionId": "s", "ageMs": 0}]})
    assert written[:3] == [
        "a:1: mcp e1 of session s1, running since 2026-12-01 11:58:30 UTC",
        "a:1: 1 left",
        "a:1: nothing runs any more",
    ]
    assert "\x1b" not in written[3]
