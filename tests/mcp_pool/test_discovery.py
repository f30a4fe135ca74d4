"""Discovery and reconnecting with real servers."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from services.mcp_pool.connector import NO_GATE
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.session import Session
from tests.mcp_pool.support import (
    LIMITS,
    SERVERS,
    SESSION,
    declared,
    manifest,
    official,
    process_gone,
    received,
    remote,
    running,
    stdio,
    until,
)


@pytest.fixture
async def harness(tmp_path):
    async with running(tmp_path) as harness:
        yield harness


@pytest.fixture
def record(tmp_path):
    return tmp_path / "record"


def outcomes(diagnostics):
    return [(diagnostic["serverName"], diagnostic["outcome"]) for diagnostic in diagnostics]


def tool_names(snapshot):
    return [record["name"] for record in snapshot["mcpTools"]]


async def test_tools_of_a_real_server_are_recorded_as_it_lists_them(harness):
    snapshot, diagnostics = await harness.discover(manifest(official()))
    assert list(snapshot) == ["snapshotSchemaVersion", "manifestHash", "mcpTools"]
    assert (snapshot["snapshotSchemaVersion"], snapshot["manifestHash"]) == (1, "hash")
    assert tool_names(snapshot) == [f"official__{name}" for name in ("add", "greet", "mixed", "fail")]
    add = snapshot["mcpTools"][0]
    assert add["description"] == "Adds two numbers."
    assert set(add["inputSchema"]["properties"]) == {"a", "b"}
    assert add["outputSchema"]["required"] == ["total"]
    assert diagnostics == [
        {"capabilityId": "cap", "serverName": "official", "outcome": "connected", "message": "Connected"}
    ]


async def test_a_manifest_without_servers_opens_nothing(harness):
    snapshot, diagnostics = await harness.discover(manifest())
    assert (snapshot["mcpTools"], diagnostics) == ([], [])
    assert harness.executor.pool.connections == 0


@pytest.mark.spec("mcp-pool:11.2")
async def test_a_server_that_fails_leaves_the_others_and_reports_in_manifest_order(harness):
    snapshot, diagnostics = await harness.discover(
        manifest(stdio("broken", "exit=1"), stdio("fine", "tools=a,b"))
    )
    assert outcomes(diagnostics) == [("broken", "failed"), ("fine", "connected")]
    assert tool_names(snapshot) == ["fine__a", "fine__b"]


async def test_servers_are_opened_at_the_same_time_and_reported_in_order(harness, tmp_path):
    # The first answers only when the second has been asked: one after the other would never end.
    gate = tmp_path / "gate"
    first, second = stdio("first", f"wait={gate}"), stdio("second", record=gate)
    _, diagnostics = await harness.discover(manifest(first, second))
    assert outcomes(diagnostics) == [("first", "connected"), ("second", "connected")]


@pytest.mark.spec("mcp-pool:11.8")
async def test_a_name_that_the_agent_has_already_is_left_out_but_not_for_its_child(harness):
    child = {
        "name": "child",
        "agent": {
            "id": "child",
            "capabilities": [{"id": "cap", "mcpServers": {"srv": stdio("srv", "tools=x")}}],
        },
    }
    document = manifest(stdio("srv", "tools=x,y"), tools=[{"name": "srv__x"}, child])
    snapshot, diagnostics = await harness.discover(document)
    assert [diagnostic["message"] for diagnostic in diagnostics] == ["Connected. Omitted srv__x", "Connected"]
    assert [(record.get("agentId"), record["name"]) for record in snapshot["mcpTools"]] == [
        (None, "srv__y"),
        ("child", "srv__x"),
    ]


@pytest.mark.spec("mcp-pool:11.9")
async def test_a_tool_that_is_listed_twice_is_reported_as_left_out(harness):
    snapshot, (diagnostic,) = await harness.discover(manifest(stdio("bad", "list=duplicates")))
    assert [record["description"] for record in snapshot["mcpTools"]] == ["first"]
    assert diagnostic["message"] == "Connected. Omitted bad__same"


@pytest.mark.spec("mcp-pool:11.10")
async def test_a_hundred_pages_are_read_and_no_more(harness, record):
    snapshot, _ = await harness.discover(manifest(stdio("bad", "list=pages", "pages=101", record=record)))
    assert tool_names(snapshot) == [f"bad__t{page}" for page in range(100)]
    pages = received(record, "tools/list")
    assert len(pages) == 100
    assert "params" not in pages[0]
    assert pages[99]["params"] == {"cursor": "99"}


@pytest.mark.spec("mcp-pool:11.10")
async def test_cursors_that_go_in_a_circle_end(harness, record):
    snapshot, (diagnostic,) = await harness.discover(manifest(stdio("bad", "list=cycle", record=record)))
    assert tool_names(snapshot) == ["bad__again"]
    assert diagnostic["outcome"] == "connected"
    assert len(received(record, "tools/list")) == 100


@pytest.mark.spec("mcp-pool:11.11")
async def test_a_page_with_one_impossible_tool_fails_the_server(harness, tmp_path):
    mark = tmp_path / "pid"
    snapshot, (diagnostic,) = await harness.discover(
        manifest(stdio("bad", "list=empty-schema", f"mark={mark}"))
    )
    assert snapshot["mcpTools"] == []
    assert diagnostic["outcome"] == "failed"
    assert "tools[1].inputSchema" in diagnostic["message"]
    await until(lambda: process_gone(int(mark.read_text())))


async def test_thousands_of_tools_are_recorded(harness):
    snapshot, _ = await harness.discover(manifest(stdio("bad", "list=thousands")))
    assert len(snapshot["mcpTools"]) == 5000


@pytest.mark.spec("mcp-pool:11.7")
async def test_a_tool_added_later_is_seen_by_a_new_session_only(harness, tmp_path):
    listing = tmp_path / "tools.json"
    document = manifest(stdio("bad", "list=from-file", f"file={listing}"))
    one = {"name": "one", "inputSchema": {"type": "object"}}
    listing.write_text(json.dumps([one]))
    snapshot, _ = await harness.discover(document)
    listing.write_text(json.dumps([one, {**one, "name": "two"}]))
    servers = [declared(stdio("bad", "list=from-file", f"file={listing}"))]
    assert await harness.executor.reconnect(SESSION, snapshot, servers) == []
    assert tool_names(snapshot) == ["bad__one"]
    later, _ = await harness.discover(document, session=Session("acme", "session-2"))
    assert tool_names(later) == ["bad__one", "bad__two"]


@pytest.mark.spec("mcp-pool:11.18")
async def test_a_server_of_a_plugin_that_is_not_there_fails_with_its_reason(harness, tmp_path):
    server = {"name": "plug", "type": "stdio", "command": "./server.mjs"}
    _, (diagnostic,) = await harness.discover(manifest(server))
    assert diagnostic["outcome"] == "failed"
    assert "plugin root" in diagnostic["message"]
    assert (tmp_path / "root" / "plugin-data" / "cap").is_dir()


async def test_a_plugins_own_program_is_started_in_its_root(harness, tmp_path):
    root = tmp_path / "plugin"
    root.mkdir()
    program = root / "server.sh"
    program.write_text("#!/bin/sh\nexec sh ${PLUGIN_ROOT}/tiny.sh\n")
    program.chmod(0o755)
    (root / "tiny.sh").symlink_to(SERVERS / "tiny.sh")
    server = {"name": "plug", "type": "stdio", "command": "./server.sh"}
    snapshot = {"mcpTools": [{"capabilityId": "cap", "serverName": "plug"}]}
    assert (
        await harness.executor.reconnect(SESSION, snapshot, [declared(server, plugin_root=str(root))]) == []
    )


async def test_remote_servers_fail_and_say_what_is_missing(harness):
    _, (diagnostic,) = await harness.discover(manifest(remote()))
    assert (diagnostic["outcome"], diagnostic["message"]) == ("failed", NO_GATE)


async def test_a_server_that_lists_nothing_in_time_fails_and_is_closed(tmp_path):
    async with running(tmp_path, dataclasses.replace(LIMITS, server=0.5)) as harness:
        mark = tmp_path / "pid"
        _, (diagnostic,) = await harness.discover(manifest(stdio("bad", "list=never", f"mark={mark}")))
        assert "within 0.5 s" in diagnostic["message"]
        await until(lambda: process_gone(int(mark.read_text())))


async def test_an_error_of_a_server_that_means_401_reads_so(harness):
    _, (diagnostic,) = await harness.discover(manifest(stdio("bad", "refuse=HTTP 401 from upstream")))
    assert diagnostic["message"] == "MCP server returned 401"


async def test_discovering_again_keeps_the_connections_that_are_there(harness, tmp_path):
    mark = tmp_path / "pids"
    document = manifest(stdio("bad", f"mark={mark}"))
    first, _ = await harness.discover(document)
    second, _ = await harness.discover(document)
    assert first == second
    assert len(harness.executor.pool) == 1
    kept, closed = (int(pid) for pid in mark.read_text().split())
    await until(lambda: process_gone(closed))
    assert not process_gone(kept)


async def test_an_abandoned_discovery_ends_at_once_and_what_was_being_opened_is_pooled(tmp_path):
    one_at_a_time = dataclasses.replace(LIMITS, opening=1)
    async with running(tmp_path, one_at_a_time) as harness:
        gate, started, never = tmp_path / "gate", tmp_path / "started", tmp_path / "never"
        document = manifest(stdio("slow", f"wait={gate}", f"mark={started}"), stdio("later", f"mark={never}"))
        discovering = asyncio.create_task(harness.discover(document))
        await until(started.exists)
        discovering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await discovering
        gate.touch()
        await until(lambda: len(harness.executor.pool))
        assert not never.exists()


@pytest.mark.spec("mcp-pool:11.4")
async def test_live_connections_are_reconnected_without_a_word(harness, record):
    server = stdio(record=record)
    snapshot, _ = await harness.discover(manifest(server))
    before = received(record)
    assert await harness.executor.reconnect(SESSION, snapshot, [declared(server)]) == []
    assert received(record) == before


@pytest.mark.spec("mcp-pool:11.5")
async def test_after_a_restart_servers_are_opened_anew_and_those_that_are_down_are_reported(tmp_path, record):
    server = stdio("up", record=record)
    down = tmp_path / "down"
    flaky = stdio("flaky", f"mark={down}")
    async with running(tmp_path) as before:
        snapshot, _ = await before.discover(manifest(server, flaky))
    async with running(tmp_path) as after:
        broken = {**flaky, "command": "gone-command"}
        diagnostics = await after.executor.reconnect(SESSION, snapshot, [declared(server), declared(broken)])
        assert outcomes(diagnostics) == [("flaky", "failed")]
        assert len(received(record, "tools/list")) == 1
        assert (await after.call(server, "echo", {"n": 1}))["output"] == {"n": 1}
        # A call tries again although reconnecting failed.
        assert (await after.call(flaky, "echo", {"n": 2}))["output"] == {"n": 2}


@pytest.mark.spec("mcp-pool:11.6")
async def test_a_server_that_the_manifest_lacks_is_reported_and_the_others_reconnected(harness):
    snapshot = {
        "mcpTools": [
            {"agentId": "child", "capabilityId": "cap", "serverName": "lost"},
            {"capabilityId": "cap", "serverName": "bad"},
            {"agentId": "child", "capabilityId": "cap", "serverName": "lost"},
        ]
    }
    (diagnostic,) = await harness.executor.reconnect(SESSION, snapshot, [declared(stdio())])
    assert (diagnostic["agentId"], diagnostic["serverName"]) == ("child", "lost")
    assert diagnostic["outcome"] == "failed"
    assert harness.executor.pool.take_live(SESSION.key(ServerName(None, "cap", "bad")))


@pytest.mark.spec("mcp-pool:11.42")
async def test_the_server_of_a_child_agent_has_a_connection_and_a_folder_of_its_own(harness, tmp_path):
    server = stdio("srv", "tools=x")
    child = {
        "name": "child",
        "agent": {"id": "child", "capabilities": [{"id": "cap", "mcpServers": {"srv": server}}]},
    }
    snapshot, _ = await harness.discover(manifest(server, tools=[child]))
    assert [record.get("agentId") for record in snapshot["mcpTools"]] == [None, "child"]
    assert len(harness.executor.pool) == 2
    assert (tmp_path / "root" / "plugin-data" / "child" / "cap").is_dir()


@pytest.mark.parametrize("snapshot", [None, {}, {"mcpTools": {}}, {"mcpTools": [1, {}, {"capabilityId": 1}]}])
async def test_a_snapshot_without_servers_reconnects_nothing(harness, snapshot):
    assert await harness.executor.reconnect(SESSION, snapshot, []) == []
