"""`sessions` and `show` against a core in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from cli.main import run
from tests.dev_core.flow_player import FlowHarness, agent, says_input
from tests.dev_core.support import CoreClient, running_core


@pytest.fixture
async def core() -> AsyncIterator[CoreClient]:
    with capture_logs():
        async with running_core() as client:
            yield client


async def command(core: CoreClient, *words: str) -> int:
    return await asyncio.to_thread(run, [*words, "--core", core.ready.http])


async def test_an_empty_core_says_how_to_begin(core: CoreClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert await command(core, "sessions") == 0
    assert "whippletree chat" in capsys.readouterr().out
    assert await command(core, "show") == 2
    assert "There is no session yet" in capsys.readouterr().err


async def test_sessions_are_listed_and_shown(core: CoreClient, capsys: pytest.CaptureFixture[str]) -> None:
    await core.agent(agent("echo"))
    await core.agent(agent("other"))
    async with FlowHarness(await core.connect(), says_input):
        assert await command(core, "run", "echo", "hello\x1b[2J") == 0
        assert await command(core, "run", "other", "bye") == 0
    capsys.readouterr()

    assert await command(core, "sessions", "--json") == 0
    newest, oldest = json.loads(capsys.readouterr().out)
    assert (newest["agentId"], oldest["agentId"]) == ("other", "echo")

    assert await command(core, "sessions", "--agent", "echo") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:3] == ["session", "agent", "status"]
    assert [line.split()[0] for line in shown[1:]] == [oldest["id"]]

    assert await command(core, "show") == 0
    assert f"Session {newest['id']} of the agent other: completed" in capsys.readouterr().out

    assert await command(core, "show", oldest["id"]) == 0
    text = capsys.readouterr().out
    assert "You: hello\ufffd[2J" in text
    assert "\x1b" not in text
    assert "completed" in text

    assert await command(core, "show", oldest["id"], "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["session"]["id"] == oldest["id"]
    assert [event["seq"] for event in document["events"]] == list(range(1, len(document["events"]) + 1))
    assert list(document["effects"]) == [document["session"]["lastTurn"]["id"]]


async def test_a_session_that_is_not_there_is_said(
    core: CoreClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command(core, "show", "ses_none") == 2
    assert "There is no session" in capsys.readouterr().err
    assert await command(core, "sessions", "--limit", "0") == 2
    assert "limit" in capsys.readouterr().err
