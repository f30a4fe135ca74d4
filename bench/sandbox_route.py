"""`read` in a workspace on its three ways: the manager in this process, over gRPC, and a bare stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import common_pb2, sandbox_manager_pb2

from bench.echo_client import EchoClient
from bench.run_context import PREFERENCE, SESSION, TENANT, TURN, run_context, tool_effect
from bench.turns import Variant
from cli.demo_agent import sandbox_tools
from gateway.executors.contract import AbortSignal, Executors
from gateway.executors.effects import effect_ref
from protocol.jsjson import JsonValue, dumps
from services.sandbox_manager.main import backend_of, now_text
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.operations import Call, SessionRef
from services.sandbox_manager.records import FILE_NAME, RecordStore
from services.sandbox_manager.root import Root
from services.sandbox_manager.settings import read_settings

CAPABILITY: Final = "workspace"
SPEC: Final[dict[str, JsonValue]] = {"network": {"preset": "none"}}
_LINE: Final = 1000


def manifest() -> dict[str, Any]:
    """An agent with a sandbox."""
    capability = {"id": CAPABILITY, "type": "agent", "sandbox": SPEC, "tools": sandbox_tools()}
    return {"manifestSchemaVersion": 4, "id": "bench", "capabilities": [capability]}


class InProcessSandbox:
    """The product's manager called directly."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        settings = read_settings(environ)
        self._root = Root(settings.workspaces)
        self._root.take()
        backend = backend_of(settings)
        records = RecordStore(self._root.path / FILE_NAME, (), now_text)
        self._manager = Manager(TENANT, PREFERENCE, [backend], records)

    async def call(self, tool: str, input_: JsonValue) -> Mapping[str, Any]:
        """The outcome document."""
        call = Call(SessionRef(SESSION, None, TURN), SPEC)
        outcome: Mapping[str, Any] = await self._manager.run(call, tool, input_)
        return outcome

    async def close(self) -> None:
        """Stops the workspaces."""
        await self._manager.close()
        self._root.release()


async def fill(size: int, here: InProcessSandbox, executors: Executors) -> None:
    """Writes the file that is read, into both workspaces."""
    lines = size // _LINE or 1
    content = "\n".join(["a" * (size // lines - 8)] * lines)
    input_: JsonValue = {"path": _path(size), "content": content}
    effect = tool_effect(CAPABILITY, "write", input_)
    outcome = await executors.tools.execute(effect, run_context(manifest()), AbortSignal(), False)
    _check(outcome.value)
    _check(await here.call("write", input_))


def variants(size: int, here: InProcessSandbox, executors: Executors, echo: EchoClient) -> dict[str, Variant]:
    """The three ways of a call of this size: the input has a member that nobody reads, the file is as large."""
    run, signal = run_context(manifest()), AbortSignal()
    bare_size = len(dumps({"path": _path(size), "padding": ""}))
    input_: JsonValue = {"path": _path(size), "padding": "x" * (size - bare_size)}
    request = sandbox_manager_pb2.WorkspaceOperation(
        tenant=sandbox_manager_pb2.TenantRef(tenant_id=TENANT, preference=PREFERENCE),
        workspace=sandbox_manager_pb2.WorkspaceRef(owner_id=SESSION, active_turn_id=TURN),
        spec=common_pb2.Json(text=dumps(SPEC)),
        effect=effect_ref(tool_effect(CAPABILITY, "read", input_), run),
        tool=sandbox_manager_pb2.ToolOperation(tool="read", input=common_pb2.Json(text=dumps(input_))),
    )

    async def in_process() -> None:
        _check(await here.call("read", input_))

    async def over_grpc() -> None:
        effect = tool_effect(CAPABILITY, "read", input_)
        _check((await executors.tools.execute(effect, run, signal, False)).value)

    async def bare() -> None:
        assert len(await echo.sandbox(request)) == size

    return {"in_process": in_process, "call": over_grpc, "bare": bare}


def _path(size: int) -> str:
    return f"bench-{size}.txt"


def _check(outcome: Any) -> None:
    assert outcome["kind"] == "completed", outcome
