"""`whippletree run`: a turn of an agent or a workflow at a running core."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cli.main import run
from tests.dev_core.flow_player import FlowHarness, agent, says_input, workflow
from tests.dev_core.support import CoreClient, Lease, running_core

PAIR = workflow({"chain": [{"agent": "a"}, {"agent": "b"}]}, "a", "b")


@pytest.fixture
async def core() -> AsyncIterator[CoreClient]:
    # The core runs in this process, and its log would stand among the answers.
    with capture_logs():
        async with running_core() as client:
            yield client


async def ask(core: CoreClient, *words: str | Path) -> int:
    return await asyncio.to_thread(run, ["run", *map(str, words), "--core", core.ready.http])


async def test_a_workflow_is_put_started_and_its_output_printed(
    core: CoreClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "agent.json"
    body.write_text(json.dumps(PAIR))
    async with FlowHarness(await core.connect()):
        assert await ask(core, "steps", "go", "--put", body) == 0
    printed = capsys.readouterr()
    assert printed.out == "b: a: go\n"
    assert printed.err.startswith("session ses_")


async def test_a_message_may_be_a_text_file_or_json(
    core: CoreClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await core.agent(workflow({"map": {"each": {"agent": "a"}}}, "a", name="map"))
    await core.agent(PAIR)
    data, text = tmp_path / "data.json", tmp_path / "text.md"
    data.write_text('["x", "y"]')
    text.write_text("# Title\n")
    async with FlowHarness(await core.connect()):
        assert await ask(core, "map", "--data", data, "--effects") == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out) == ["a: x", "a: y"]
        assert "agent a[1]" in printed.err
        assert "linked session" in printed.err
        assert await ask(core, "steps", "--file", text) == 0
        assert capsys.readouterr().out == "b: a: # Title\n\n"


async def test_an_agent_is_asked_the_same_way(core: CoreClient, capsys: pytest.CaptureFixture[str]) -> None:
    await core.agent(agent("plain"))
    async with FlowHarness(await core.connect(), says_input):
        assert await ask(core, "plain", "hello") == 0
    assert capsys.readouterr().out == "plain: hello\n"


async def fails(lease: Lease) -> Any:
    error = {"code": "model.auth", "message": "no key"}
    return await lease.output("turn.failed", status="failed", error=error)


async def pauses(lease: Lease) -> Any:
    asked = {"id": "i1", "kind": "approval", "prompt": "Pay?"}
    pending = [{"callId": "c", "toolName": "t", "args": {}, "status": "interaction", "interaction": asked}]
    state = lease.state("paused")
    return await lease.output("turn.paused", status="paused", state=state, transcript=[], pending=pending)


@pytest.mark.parametrize(
    ("behaves", "said"),
    [(fails, "agent.failed model.auth: no key"), (pauses, "waits for a person (i1: Pay?)")],
)
async def test_another_end_is_told_with_the_reason(
    core: CoreClient, capsys: pytest.CaptureFixture[str], behaves: Any, said: str
) -> None:
    await core.agent(PAIR)
    async with FlowHarness(await core.connect(), behaves):
        assert await ask(core, "steps", "go") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x"], "Give a text"),
        (["x", "text", "--file", "f"], "Give a text"),
        (["x", "--file", "missing"], "can't be read"),
        (["x", "--data", __file__], "is not JSON"),
        (["x", "text", "--put", __file__], "is not JSON"),
        (["nobody", "text"], "There is no agent 'nobody'"),
    ],
)
async def test_what_can_t_begin_says_why(
    core: CoreClient, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert await ask(core, *words) == 2
    assert said in capsys.readouterr().err


async def test_events_are_printed_as_lines_of_json(
    core: CoreClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await core.agent(agent("plain"))
    async with FlowHarness(await core.connect(), says_input):
        assert await ask(core, "plain", "hello", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "turn.completed"


async def test_a_session_goes_on_and_belongs_to_its_agent(
    core: CoreClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await core.agent(agent("plain"))
    session = await core.session("plain")
    async with FlowHarness(await core.connect(), says_input):
        assert await ask(core, "plain", "one", "--session", session) == 0
        assert await ask(core, "plain", "two", "--session", session, "--json") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("plain: one\n")
    assert "two" in printed.out
    assert '"input":"one"' not in printed.out
    assert await ask(core, "other", "x", "--session", session) == 2
    assert "of the agent plain" in capsys.readouterr().err


async def test_a_message_may_come_from_stdin(
    core: CoreClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    await core.agent(agent("plain"))
    async with FlowHarness(await core.connect(), says_input):
        assert await ask(core, "plain", "-") == 0
    assert capsys.readouterr().out == "plain: from a pipe\n"
