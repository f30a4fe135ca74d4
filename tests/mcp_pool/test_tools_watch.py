"""Changed tools are said to people once, and the session keeps what it has."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from services.mcp_pool import tools_watch
from services.mcp_pool.declarations import ServerName
from tests.mcp_pool.support import LIMITS, SESSION, declared, manifest, received, running, stdio, until

NOW = dataclasses.replace(LIMITS, look_pause=0.01)
NAME = ServerName(None, "cap", "bad")


def tool(name, **members):
    return {"name": name, "inputSchema": {"type": "object"}, **members}


class Log:
    def __init__(self):
        self.lines = []

    def warning(self, event, **fields):
        self.lines.append((event, fields))

    debug = warning


@pytest.fixture
def said(monkeypatch):
    log = Log()
    monkeypatch.setattr(tools_watch, "get_logger", lambda: log)
    return log.lines


@pytest.fixture
def tools(tmp_path):
    """The server's tools, in a file that the test changes."""

    def put(*listed):
        (tmp_path / "next").write_text(json.dumps(listed))
        (tmp_path / "next").rename(tmp_path / "tools.json")

    put(tool("echo"), tool("notify"))
    return put


@pytest.fixture
def server(tmp_path):
    return stdio("bad", "list=from-file", f"file={tmp_path}/tools.json", record=tmp_path / "record")


def listings(tmp_path):
    return len(received(tmp_path / "record", "tools/list"))


async def prepared(harness, server):
    """A session whose server is pinned."""
    snapshot, _ = await harness.discover(manifest(server))
    entry = harness.executor.pool.take_live(SESSION.key(NAME))
    await until(lambda: entry.watched)
    return snapshot


async def test_a_change_that_the_server_tells_is_said_once_with_tool_and_member(
    tmp_path, said, tools, server
):
    async with running(tmp_path, NOW) as harness:
        await prepared(harness, server)
        tools(tool("echo", description="new"), tool("notify"), tool("third"))
        await harness.call(server, "notify", {"method": "notifications/tools/list_changed"})
        await until(lambda: len(said) == 2)
        assert said == [
            (
                "mcp_tools_changed",
                {"sessionId": "session-1", "server": "bad", "tool": "echo", "member": "description"},
            ),
            (
                "mcp_tools_changed",
                {"sessionId": "session-1", "server": "bad", "tool": "third", "member": "added"},
            ),
        ]
        assert harness.executor.tools_changed.count == 2
        assert harness.executor.tools_changed.last == "bad third (added)"
        before = listings(tmp_path)
        await harness.call(server, "notify", {"method": "notifications/tools/list_changed"})
        await until(lambda: listings(tmp_path) > before)
        assert len(said) == 2


async def test_a_new_session_sees_the_new_tool_and_the_old_one_is_not_disturbed(
    tmp_path, said, tools, server
):
    async with running(tmp_path, NOW) as harness:
        snapshot = await prepared(harness, server)
        tools(tool("echo"), tool("notify"), tool("third"))
        await harness.call(server, "notify", {"method": "notifications/tools/list_changed"})
        await until(lambda: said)
        assert await harness.executor.reconnect(SESSION, snapshot, [declared(server)]) == []
        fresh, _ = await harness.discover(
            manifest(server), session=dataclasses.replace(SESSION, session_id="new")
        )
        assert [record["serverToolName"] for record in fresh["mcpTools"]] == ["echo", "notify", "third"]


async def test_a_flood_of_notifications_is_answered_by_few_looks(tmp_path, said, tools, server):
    async with running(tmp_path, dataclasses.replace(LIMITS, look_pause=30.0)) as harness:
        await prepared(harness, server)
        before = listings(tmp_path)
        arguments = {"method": "notifications/tools/list_changed", "count": 500}
        await harness.call(server, "notify", arguments)
        await until(lambda: listings(tmp_path) > before)
        await harness.call(server, "notify", arguments)
        await harness.call(server, "echo")
        assert listings(tmp_path) == before + 1


@pytest.mark.parametrize("check", [True, False])
async def test_after_a_reconnect_tools_are_listed_when_that_is_asked_for(
    tmp_path, said, tools, server, check
):
    async with running(tmp_path, NOW) as harness:
        snapshot = await prepared(harness, server)
    tools(tool("echo", inputSchema={"type": "object", "required": ["a"]}), tool("notify"))
    before = listings(tmp_path)
    async with running(tmp_path, NOW, check_tools=check) as harness:
        assert await harness.executor.reconnect(SESSION, snapshot, [declared(server)], 1) == []
        if check:
            await until(lambda: said)
            assert said[0][1]["member"] == "inputSchema"
        else:
            # The server is asked in order: a listing would have come before the call.
            await harness.call(server, "echo")
            assert said == []
        assert listings(tmp_path) == before + check


async def test_a_connection_that_a_call_opened_is_pinned_by_the_next_preparation(
    tmp_path, said, tools, server
):
    async with running(tmp_path, NOW) as harness:
        snapshot = await prepared(harness, server)
    async with running(tmp_path, NOW) as harness:
        await harness.call(server, "notify", {"method": "notifications/tools/list_changed"})
        assert await harness.executor.reconnect(SESSION, snapshot, [declared(server)], 1) == []
        entry = harness.executor.pool.take_live(SESSION.key(NAME))
        await until(lambda: entry.watched)
        tools(tool("echo"))
        await harness.call(server, "notify", {"method": "notifications\\/tools\\/list_changed"})
        await until(lambda: said)
        assert said[0][1]["member"] == "removed"


async def test_more_changes_than_are_listed_are_counted(tmp_path, said, tools, server, monkeypatch):
    monkeypatch.setattr(tools_watch, "MAX_LINES", 3)
    async with running(tmp_path, NOW) as harness:
        await prepared(harness, server)
        tools(tool("notify"), *(tool(f"t{n}") for n in range(9)))
        await harness.call(server, "notify", {"method": "notifications/tools/list_changed"})
        await until(lambda: len(said) == 4)
        assert said[-1][1]["more"] == 7
        assert harness.executor.tools_changed.count == 10


async def test_a_server_that_cannot_be_listed_any_more_changes_nothing(tmp_path, said, tools, server):
    async with running(tmp_path, NOW) as harness:
        await prepared(harness, server)
        (tmp_path / "tools.json").write_text("[{}]")
        await harness.call(server, "notify", {"method": "notifications/tools/list_changed"})
        await until(lambda: said)
        assert said[0][0] == "mcp_tools_not_listed"
        assert harness.executor.tools_changed.count == 0
        await harness.call(server, "echo")


async def test_a_connection_that_ends_during_a_look_is_forgotten(tmp_path, said, tools, server):
    async with running(tmp_path, NOW) as harness:
        await prepared(harness, server)
        call = asyncio.create_task(
            harness.call(server, "notify", {"method": "notifications/tools/list_changed", "die": True})
        )
        await asyncio.wait([call], timeout=30)
        assert call.exception() is not None
        await harness.call(server, "echo")
        assert harness.executor.tools_changed.count == 0
