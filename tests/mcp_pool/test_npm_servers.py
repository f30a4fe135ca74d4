"""The reference servers of npm, as people use them (`make npm` installs them)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from services.common.effect_run import CANCEL, AbortLatch, EffectAborted
from services.mcp_pool.declarations import ServerName
from tests.mcp_pool.support import SESSION, declared, manifest, running

PROGRAMS = Path(__file__).parents[2] / ".venv" / "npm" / "node_modules" / ".bin"

pytestmark = [pytest.mark.system]


def server(name, *arguments, **env):
    """The declaration of a reference server; skips where it is not installed."""
    program = PROGRAMS / f"mcp-server-{name}"
    if not program.exists():
        pytest.skip(f"@modelcontextprotocol/server-{name} is not installed; make npm installs it")
    return {
        "name": name,
        "type": "stdio",
        "command": str(program),
        "args": [str(argument) for argument in arguments],
        "env": env,
    }


@pytest.fixture
async def harness(tmp_path):
    async with running(tmp_path, environ=ENVIRON) as harness:
        yield harness


ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "A_SECRET": "hidden"}


async def test_everything_is_discovered_whole_with_usable_schemas(harness):
    snapshot, diagnostics = await harness.discover(manifest(server("everything")))
    assert diagnostics == [
        {"capabilityId": "cap", "serverName": "everything", "outcome": "connected", "message": "Connected"}
    ]
    tools = {record["serverToolName"]: record for record in snapshot["mcpTools"]}
    assert {"echo", "get-sum", "get-structured-content", "get-tiny-image"} <= set(tools)
    assert tools["get-sum"]["name"] == "everything__get-sum"
    assert tools["get-structured-content"]["outputSchema"]["type"] == "object"


async def test_everything_s_results_come_to_outcomes_of_each_kind(harness):
    everything = server("everything")
    assert await harness.call(everything, "echo", {"message": "hi"}) == {
        "kind": "completed",
        "output": "Echo: hi",
    }
    assert "5" in (await harness.call(everything, "get-sum", {"a": 2, "b": 3}))["output"]
    structured = await harness.call(everything, "get-structured-content", {"location": "Chicago"})
    assert set(structured["output"]) >= {"temperature", "conditions", "humidity"}
    image = await harness.call(everything, "get-tiny-image")
    assert isinstance(image["output"], str)
    wrong = await harness.call(everything, "get-sum", {"a": "two"})
    assert (wrong["kind"], wrong["code"]) == ("failed", "mcp.tool")


async def test_everything_sees_the_declared_environment_and_nothing_of_ours(harness):
    seen = json.loads((await harness.call(server("everything", MINE="1"), "get-env"))["output"])
    assert seen["MINE"] == "1"
    assert seen["HOME"] == harness.root.home
    assert "A_SECRET" not in seen


async def test_a_long_operation_of_everything_is_cancelled_and_the_server_lives_on(harness):
    everything, abort = server("everything"), AbortLatch()
    await harness.call(everything, "echo", {"message": "warm"})
    call = asyncio.create_task(
        harness.call(
            everything, "trigger-long-running-operation", {"duration": 600, "steps": 600}, abort=abort
        )
    )
    other = await harness.call(everything, "echo", {"message": "meanwhile"})
    assert other["output"] == "Echo: meanwhile"
    abort.set(CANCEL)
    with pytest.raises(EffectAborted):
        await call
    assert (await harness.call(everything, "echo", {"message": "after"}))["output"] == "Echo: after"
    assert len(harness.executor.pool) == 1


async def test_filesystem_writes_reads_and_refuses_what_is_outside(harness, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    filesystem = server("filesystem", folder)
    path = str(folder / "a.txt")
    written = await harness.call(filesystem, "write_file", {"path": path, "content": "ä\u2028b"})
    assert written["kind"] == "completed"
    assert Path(path).read_text() == "ä\u2028b"
    read = await harness.call(filesystem, "read_text_file", {"path": path})
    assert read["output"] == {"content": "ä\u2028b"}
    outside = await harness.call(filesystem, "read_text_file", {"path": "/etc/passwd"})
    assert (outside["kind"], outside["code"]) == ("failed", "mcp.tool")


async def test_memory_keeps_its_file_in_the_plugin_s_data_across_restarts(harness):
    memory = server("memory", MEMORY_FILE_PATH="${PLUGIN_DATA}/memory.jsonl")
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes"]}
    await harness.call(memory, "create_entities", {"entities": [entity]})
    assert await harness.executor.close_session(SESSION) == 1
    assert harness.executor.children == 0
    graph = (await harness.call(memory, "read_graph"))["output"]
    assert [found["name"] for found in graph["entities"]] == ["Ada"]
    assert (Path(harness.root.data_of("cap")) / "memory.jsonl").exists()


async def test_the_three_of_them_are_opened_for_one_session_and_found_again(harness, tmp_path):
    servers = [server("everything"), server("filesystem", tmp_path), server("memory")]
    snapshot, diagnostics = await harness.discover(manifest(*servers))
    assert [diagnostic["outcome"] for diagnostic in diagnostics] == ["connected"] * 3
    assert [diagnostic["serverName"] for diagnostic in diagnostics] == ["everything", "filesystem", "memory"]
    await harness.executor.close_session(SESSION)
    assert await harness.executor.reconnect(SESSION, snapshot, [declared(item) for item in servers]) == []
    for item in servers:
        assert harness.executor.pool.take_live(SESSION.key(ServerName(None, "cap", item["name"])))
