"""`whippletree mcp list`: what a person sees of an agent's MCP servers without a core."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import psutil
import pytest

from cli.main import run
from cli.mcp_list import lines
from tests.mcp_pool.support import manifest, official, process_gone, remote, stdio
from tests.tool_gate.remote_server import serving


def listed(capsys: Any, folder: Any, document: Any, *flags: str) -> tuple[int, list[str], str]:
    file = folder / "agent.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    code = run(["mcp", "list", "--manifest", str(file), *flags])
    printed = capsys.readouterr()
    return code, printed.out.splitlines(), printed.err


def test_servers_and_tools_are_shown_with_their_names_for_a_model(tmp_path, capsys):
    mark = tmp_path / "pids"
    code, out, _ = listed(
        capsys, tmp_path, manifest(official(), stdio("bad", "list=duplicates", f"mark={mark}"))
    )
    assert code == 0
    assert out[0].split() == ["server", "capability", "outcome", "tools", "message"]
    assert out[1].split() == ["official", "cap", "connected", "4", "Connected"]
    assert out[2].split() == ["bad", "cap", "connected", "1", "Connected.", "Omitted", "bad__same"]
    assert out[3] == ""
    rows = [line.split() for line in out[5:]]
    assert rows[0][:4] == ["official__add", "add", "official", "cap"]
    assert rows[-1] == ["bad__same", "same", "bad", "cap", "first"]
    assert all(process_gone(int(pid)) for pid in mark.read_text().split())


def test_servers_that_fail_say_why_and_the_exit_code_says_so_too(tmp_path, capsys):
    gone = {"name": "gone", "type": "stdio", "command": "no-such-program"}
    code, out, _ = listed(capsys, tmp_path, manifest(gone, stdio()))
    assert code == 1
    assert "'no-such-program' was not found" in out[1]
    assert "connected" in out[2]


async def test_remote_servers_are_asked_with_the_headers_of_the_tool_gate_s_file(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("NYLORUN_GATES_URL", raising=False)
    monkeypatch.setenv("FAR_TOKEN", "a-credential-of-the-test")
    async with serving("json") as there:
        origin = there.url.removesuffix("/mcp")
        file = tmp_path / "tool-gate.toml"
        file.write_text(
            f'[servers.far]\norigin = "{origin}"\nallow_private = true\n'
            '[servers.far.headers]\nAuthorization = {env = "FAR_TOKEN", prefix = "Bearer "}\n'
        )
        private = {**there.declaration, "name": "private"}
        monkeypatch.setenv("WHIPPLETREE_TOOL_GATE_CONFIG", str(file))
        code, out, _ = await asyncio.to_thread(
            listed, capsys, tmp_path, manifest(there.declaration, private, stdio())
        )
        assert there.sessions
    rows = [line.split() for line in out]
    assert rows[1][:3] == ["far", "cap", "connected"]
    assert rows[2][:3] == ["private", "cap", "failed"]
    assert rows[3][:3] == ["bad", "cap", "connected"]
    assert any(row[:3] == ["far__echo", "echo", "far"] for row in rows[5:])
    assert code == 1
    assert "a-credential" not in "".join(out)


@pytest.mark.parametrize("where", ["named", "in the state folder"])
def test_a_gate_s_file_that_can_t_be_used_is_said_in_one_line(tmp_path, capsys, monkeypatch, where):
    monkeypatch.delenv("NYLORUN_GATES_URL", raising=False)
    monkeypatch.setenv("WHIPPLETREE_STATE_DIR", str(tmp_path))
    (tmp_path / "tool-gate.toml").write_text("[servers.far\n")
    if where == "named":
        monkeypatch.setenv("WHIPPLETREE_TOOL_GATE_CONFIG", str(tmp_path / "tool-gate.toml"))
    code, out, err = listed(capsys, tmp_path, manifest(remote()))
    assert (code, out) == (2, [])
    assert err.count("\n") == 1
    assert "tool-gate.toml" in err


def test_behind_a_stack_s_gate_a_remote_server_s_line_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NYLORUN_GATES_URL", "http://gateway:4100")
    code, out, _ = listed(capsys, tmp_path, manifest(remote(), stdio()))
    assert code == 1
    assert "NYLORUN_GATES_URL names a gates service" in out[1]
    assert "WHIPPLETREE_TOOL_GATE_CONFIG" in out[1]
    assert "connected" in out[2]


def test_the_body_of_a_put_is_taken_too_and_json_is_the_discovery_s(tmp_path, capsys):
    code, out, _ = listed(capsys, tmp_path, {"manifest": manifest(stdio())}, "--json")
    assert code == 0
    (line,) = out
    found = json.loads(line)
    assert [tool["name"] for tool in found["snapshot"]["mcpTools"]] == ["bad__echo"]
    assert found["diagnostics"][0]["outcome"] == "connected"
    assert len(found["snapshot"]["manifestHash"]) > 16


def test_a_plugin_s_server_is_found_by_its_root(tmp_path, capsys):
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "server").write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    (plugin / "server").chmod(0o755)
    declaration = {**stdio(), "command": "./server"}
    code, out, _ = listed(capsys, tmp_path, manifest(declaration))
    assert code == 1
    assert "requires a plugin root" in out[1]
    code, _, _ = listed(
        capsys,
        tmp_path,
        manifest(declaration),
        "--plugin-root",
        f"cap={plugin}",
        "--root",
        str(tmp_path / "r"),
    )
    assert code == 0
    assert (tmp_path / "r" / "plugin-data" / "cap").is_dir()


@pytest.mark.parametrize(
    ("document", "flags", "says"),
    [
        ("{", (), "is not JSON"),
        ("[]", (), "is not an agent's manifest"),
        ({"capabilities": 1}, (), "is not an agent's manifest"),
        ({"capabilities": []}, ("--plugin-root", "cap"), "CAPABILITY=/an/absolute/path"),
        ({"capabilities": []}, ("--plugin-root", "cap=relative"), "CAPABILITY=/an/absolute/path"),
        ({"capabilities": []}, ("--root", "/proc/nothing"), "can't be used"),
    ],
)
def test_what_can_not_be_used_is_named_in_one_line(tmp_path, capsys, document, flags, says):
    code, out, err = listed(capsys, tmp_path, document, *flags)
    assert (code, out) == (2, [])
    assert says in err
    assert err.count("\n") == 1


def test_a_file_that_is_not_there_is_named(capsys):
    assert run(["mcp", "list", "--manifest", "/no/such/file"]) == 2
    assert "/no/such/file can't be read" in capsys.readouterr().err


def test_settings_of_the_pool_count_and_a_bad_one_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION", "1")
    code, out, _ = listed(capsys, tmp_path, manifest(stdio("a"), stdio("b")))
    assert code == 1
    assert "WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION=1" in out[2]
    monkeypatch.setenv("WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION", "many")
    code, _, err = listed(capsys, tmp_path, manifest())
    assert code == 2
    assert "WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION" in err


def test_an_agent_without_servers_says_so(tmp_path, capsys):
    assert listed(capsys, tmp_path, manifest())[:2] == (0, ["The manifest declares no MCP servers."])


def test_nothing_in_a_server_s_texts_commands_the_terminal(tmp_path, capsys):
    tools = tmp_path / "tools.json"
    tools.write_text(
        json.dumps([{"name": "a\x1b[2J", "description": "b\x07\nc", "inputSchema": {"type": "object"}}])
    )
    code, out, _ = listed(capsys, tmp_path, manifest(stdio("bad", "list=from-file", f"file={tools}")))
    assert code == 0
    assert "\x1b" not in "".join(out)
    assert "\x07" not in "".join(out)


def test_servers_of_agents_used_as_tools_carry_the_agent():
    server = {"agentId": "child", "capabilityId": "cap", "serverName": "srv"}
    tool = {**server, "serverToolName": "t", "name": "srv__t", "inputSchema": {}}
    shown = lines({"mcpTools": [tool]}, [{**server, "outcome": "connected", "message": "Connected"}])
    assert shown[1].split() == ["srv", "child/cap", "connected", "1", "Connected"]
    assert shown[4].split() == ["srv__t", "t", "srv", "child/cap"]


def test_no_process_stays(tmp_path, capsys):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    listed(capsys, tmp_path, manifest(stdio("b", "exit=1"), official()))
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before
