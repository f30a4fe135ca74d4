"""What `replay --live` runs and what it leaves alone; tests/system/test_replay_live.py runs it for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.recordings import live
from cli.recordings.driven import Asked
from cli.recordings.find import UsageError, read_one
from cli.recordings.live import LiveServices
from gateway.engine.contract import EffectKind, EffectRequest, ModelCall
from protocol import jsjson
from tests.gateway.recorded import MANIFEST, lines_of, record_turn, turn, write_lines

NOBODY = "127.0.0.1:1"
ENVIRON = {
    "NYLORUN_MODEL_EXECUTOR_TARGET": NOBODY,
    "NYLORUN_MCP_POOL_TARGET": NOBODY,
    "NYLORUN_SANDBOX_MANAGER_TARGET": f"s0={NOBODY}",
    "NYLORUN_GRPC_TOKEN": "0123456789abcdef" * 4,
}
SERVER = {"name": "db", "type": "stdio", "command": "db", "args": ["--key", "secret"]}
SANDBOX_TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("bash", "read", "write", "edit", "grep", "glob")
]
WITH_SERVERS: dict[str, Any] = {
    **MANIFEST,
    "capabilities": [
        {"id": "desk", "type": "agent", "mcpServers": {"db": SERVER}},
        {"id": "files", "type": "agent", "sandbox": {}, "tools": SANDBOX_TOOLS},
    ],
}
RECORD = {
    "agentId": None,
    "capabilityId": "desk",
    "serverName": "db",
    "serverToolName": "find",
    "name": "db__find",
}


def effect(kind: EffectKind, **members: Any) -> Asked:
    call = ModelCall((b"{}",)) if kind == "model" else None
    return Asked(EffectRequest(f"t1:0:{kind}:x", kind, {"kind": kind, **members}, "hash", call), known=False)


def tool(capability: str, name: str) -> Asked:
    return effect("tool", capabilityId=capability, toolName=name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recorded run of an agent with an MCP server and a sandbox."""
    snapshot = {"mcpTools": [RECORD]}
    given = turn(manifest=WITH_SERVERS, routing={"mcpSnapshot": snapshot})
    recorded = record_turn(tmp_path, given, {"t1:0:model:invocation_t1_0_1": "Hello."})
    (tmp_path / "manifest.json").write_text(jsjson.dumps(WITH_SERVERS))
    return recorded


@pytest.fixture
def services(path: Path) -> Iterator[LiveServices]:
    with LiveServices(read_one(path), ENVIRON, None) as made:
        yield made


def test_models_and_tools_of_the_sandbox_are_its_own(services):
    assert services.takes(effect("model")) is True
    assert services.takes(tool("files", "bash")) is True


@pytest.mark.parametrize("kind", ["hook", "agent", "fn", "verify"])
def test_what_a_core_answers_is_left_alone(services, kind):
    assert services.takes(effect(kind)) == f"Effects of kind {kind} are answered by a core, not by a service."


def test_a_tool_of_an_application_is_left_alone(services):
    assert services.takes(tool("desk", "note")) == "The tool note runs in an application, not in a service."


def test_mcp_tools_need_the_whole_manifest(path, services):
    assert "--manifest FILE" in str(services.takes(tool("desk", "db__find")))
    with LiveServices(read_one(path), ENVIRON, path.parent / "manifest.json") as whole:
        assert whole.takes(tool("desk", "db__find")) is True


def test_another_agents_manifest_is_refused(path):
    other = path.parent / "other.json"
    other.write_text(jsjson.dumps({**WITH_SERVERS, "description": "another one"}))
    with pytest.raises(UsageError, match="is not the manifest that was recorded"):
        LiveServices(read_one(path), ENVIRON, other)


def test_a_recording_without_a_tenant_runs_no_commands(path):
    header, *rest = lines_of(path)
    del header["tenantId"]
    with LiveServices(read_one(write_lines(path, [header, *rest])), ENVIRON, None) as old:
        assert "older gateway" in str(old.takes(tool("files", "bash")))
        assert old.takes(effect("model")) is True


def test_services_that_are_not_there_are_named_and_nothing_runs(services, monkeypatch):
    monkeypatch.setattr(live, "READY_LIMIT_S", 0.2)
    monkeypatch.setattr(live, "configure_logging", lambda *_, **__: None)
    with pytest.raises(UsageError, match=r"no answer from model-executor, mcp-pool, sandbox-manager"):
        services.answer(effect("model"))


def test_nothing_of_the_recorded_session_is_met(services):
    run = services._run
    assert run.session_id == run.run_id
    assert run.session_id.startswith("replay-")
    assert run.sandbox.owner_id == run.session_id
    assert (run.sandbox.sandbox_id, run.tenant_id, run.token()) == (None, "tn_1", None)
