"""Which service a tool effect goes to (mcp-pool 8.1, sandbox-manager 11.1)."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.engine.contract import EffectRequest
from gateway.executors.contract import AbortSignal, ExecutionFailed, RunContext
from gateway.executors.effects import SURROGATE_TEXT, js_string, member
from gateway.executors.mcp import GrpcMcp
from gateway.executors.run_sandbox import sandbox_for
from gateway.executors.run_servers import servers_for
from gateway.executors.sandbox import SandboxCalls
from protocol.jsjson import JsonValue, Parsed


class GrpcToolExecutor:
    """Executes every effect that is no model call: an MCP tool when the snapshot has it, else a sandbox tool."""

    def __init__(self, mcp: GrpcMcp, sandbox: SandboxCalls) -> None:
        self._mcp = mcp
        self._sandbox = sandbox

    def recovers(self, effect: EffectRequest, run: RunContext) -> bool:
        """The effect is a call of a remote MCP tool: its gate keeps it."""
        record = _record(effect, run)
        return record is not None and self._mcp.recovers(record, run)

    async def execute(
        self, effect: EffectRequest, run: RunContext, signal: AbortSignal, rejoin: bool
    ) -> Parsed:
        """The outcome document. Raises RunAborted, or ExecutionFailed (the effect becomes uncertain)."""
        if effect.kind != "tool":
            raise ExecutionFailed(f"The harness does not execute effects of kind {effect.kind}.")
        record = _record(effect, run)
        if record is not None:
            return await self._mcp.call(record, effect, run, signal, rejoin)
        document = effect.document
        try:
            place = sandbox_for(run)
        except UnicodeEncodeError:
            raise ExecutionFailed(SURROGATE_TEXT) from None
        spec = place.spec(_agent_id(effect), document.get("capabilityId"), document.get("toolName"))
        if spec is None:
            raise ExecutionFailed(
                f"The tool {document.get('toolName')} is not one that the harness executes."
            )
        return await self._sandbox.run_tool(spec, effect, run, signal, rejoin)

    async def cancel(self, effect: EffectRequest, run: RunContext) -> None:
        """Asks the gate to cancel an effect that recovers. Never fails; at most 3 s."""
        await self._mcp.cancel(effect, run)


def _agent_id(effect: EffectRequest) -> str | None:
    agent_id = member(effect.document.get("agent"), "id")
    return None if agent_id is None else js_string(agent_id)


def _record(effect: EffectRequest, run: RunContext) -> Mapping[str, JsonValue] | None:
    if effect.kind != "tool":
        return None
    document = effect.document
    return servers_for(run).record(_agent_id(effect), document.get("capabilityId"), document.get("toolName"))
