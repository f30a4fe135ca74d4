"""Agents and flows used as tools: a call of one runs it inside its parent's dispatch (agent-engine 17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gateway.engine.agent import texts
from gateway.engine.agent.context import AgentContext
from gateway.engine.agent.definition import AgentDefinition, SchemaRefused
from gateway.engine.agent.entry_facts import facts_of
from gateway.engine.agent.input import Message
from gateway.engine.agent.loop import AgentRun, Ending
from gateway.engine.agent.origin import AgentRef, Origin
from gateway.engine.agent.outcomes import failed
from gateway.engine.agent.plan import PlanCall
from gateway.engine.agent.rollover import Rollover
from gateway.engine.agent.state import AgentState
from gateway.engine.agent.transcript import Transcript
from gateway.engine.contract import AgentSnapshot, EffectRequest, EngineRefused
from gateway.engine.failures import HostFailure
from gateway.engine.tasks import Work
from protocol.jsjson import JsonValue
from protocol.manifests.shape import JS_WHITESPACE
from protocol.utf16 import utf16_length, utf16_truncate

EVIDENCE_UNITS: Final = 4000
"""Most UTF-16 code units of a failed child's last words that its parent is shown."""

_FAILED: Final = "delegation.failed"

ChildStatus = Literal["completed", "failed", "cancelled", "paused"]
DefinitionOf = Callable[[Mapping[str, Any]], AgentDefinition]
"""Rebuilds a child from its manifest, with its session tools. Raises EngineRefused."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """How a child ended, and what its parent makes of it."""

    status: ChildStatus
    outcome: dict[str, JsonValue]


class Delegations:
    """Runs the children of one agent."""

    def __init__(self, parent: AgentContext, definition_of: DefinitionOf) -> None:
        self._parent = parent
        self._definition_of = definition_of
        self._definitions: dict[str, AgentDefinition] = {}
        self._running: dict[str, AgentRun] = {}

    def snapshots(self, waiting: Sequence[str]) -> list[AgentSnapshot]:
        """Where each child that runs now stands, `waiting` being the effects in flight."""
        return [run.snapshot(waiting) for run in self._running.values()]

    def run(self, call: PlanCall, manifest: Mapping[str, Any]) -> Work[JsonValue]:
        """The call's outcome. Raises Suspended, and what the host raises about either journal entry."""
        parent = self._parent
        child_id = manifest["id"]
        ref = AgentRef(child_id, f"{parent.definition.agent_id}/{child_id}", call.invocation_id)
        origin = parent.origin.of_child(ref)
        assert isinstance(call.args, dict)
        task = call.args["task"]
        yield from parent.host.ask(_journal_effect(origin, "started", call, {"task": task}))
        if manifest.get("kind") == "workflow":
            settled = yield from self._run_flow(origin, ref, task)
        else:
            settled = yield from self._run_agent(origin, ref, task, manifest)
        told: dict[str, JsonValue] = {"status": settled.status, "outcome": settled.outcome}
        yield from parent.host.ask(_journal_effect(origin, "settled", call, told))
        return settled.outcome

    def _run_agent(
        self, origin: Origin, ref: AgentRef, task: JsonValue, manifest: Mapping[str, Any]
    ) -> Work[_Settled]:
        try:
            definition = self._definition(manifest)
        except SchemaRefused as refused:
            return _Settled("failed", failed(refused.code or _FAILED, refused.reason))
        except EngineRefused as refused:
            return _Settled("failed", failed(refused.code or _FAILED, refused.message))
        parent = self._parent
        state = AgentState(
            agent_id=ref.agent_id,
            manifest_hash=parent.state.manifest_hash,
            execution_id=f"{parent.state.execution_id}/{ref.delegation_id}",
            output_contract=definition.output_contract,
        )
        ids = parent.ids.nested(ref.delegation_id)
        context = replace(parent, origin=origin, definition=definition, state=state, ids=ids)
        run = AgentRun(context, Rollover(None, parent.host.now_ms))
        self._running[ref.delegation_id] = run
        try:
            ending = yield from run.run(Message({"kind": "user-message", "text": task}))
        finally:
            del self._running[ref.delegation_id]
        return _settled(ending, state.transcript)

    def _definition(self, manifest: Mapping[str, Any]) -> AgentDefinition:
        child_id = manifest["id"]
        if child_id not in self._definitions:
            self._definitions[child_id] = self._definition_of(manifest)
        return self._definitions[child_id]

    def _run_flow(self, origin: Origin, ref: AgentRef, task: JsonValue) -> Work[_Settled]:
        try:
            answer = yield from self._parent.host.ask(_flow_effect(origin, ref, task))
        except HostFailure as failure:
            return _Settled("failed", failed(_FAILED, failure.message))
        value = answer.outcome.get("value")
        if isinstance(value, dict) and value.get("kind") == "failed" and isinstance(value.get("code"), str):
            code, message = value["code"], value.get("message")
            said = message if isinstance(message, str) else code
            return _Settled("failed", failed(_FAILED, texts.child_failed(f"{code}: {said}")))
        if _is_blank(value):
            return _Settled("failed", _empty())
        return _Settled("completed", {"kind": "completed", "output": value})


def _settled(ending: Ending, transcript: Transcript) -> _Settled:
    """What a child's ending means to its parent."""
    if ending.status == "cancelled":
        return _Settled("cancelled", failed("tool.cancelled", texts.CHILD_CANCELLED))
    if ending.error is not None:
        error = ending.error
        reason = error.code if error.code.startswith("execution.") else f"{error.code}: {error.message}"
        message = texts.child_failed(reason) + _evidence(transcript)
        return _Settled("failed", failed(_FAILED, message))
    if ending.status != "completed":
        return _Settled("paused", failed("delegation.interaction-unsupported", texts.CHILD_MAY_NOT_ASK))
    output: Any = ending.output
    if _is_blank(output):
        return _Settled("completed", _empty())
    return _Settled("completed", {"kind": "completed", "output": output})


def _empty() -> dict[str, Any]:
    return failed("delegation.empty-output", texts.CHILD_WITHOUT_ANSWER)


def _is_blank(output: JsonValue) -> bool:
    return output is None or (isinstance(output, str) and not output.strip(JS_WHITESPACE))


def _evidence(transcript: Transcript) -> str:
    """The newest words of a failed child, cut where they are long; nothing when it said none."""
    for entry in reversed(transcript.entries):
        if facts_of(entry).kind != "candidate":
            continue
        value: Any = entry.value()
        blocks = value["candidate"]["output"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text").strip(JS_WHITESPACE)
        if text:
            if utf16_length(text) > EVIDENCE_UNITS:
                text = f"{utf16_truncate(text, EVIDENCE_UNITS)}…"
            return texts.partial_output(text)
    return ""


# Effects (agent-engine 8)


def _journal_effect(
    origin: Origin, what: Literal["started", "settled"], call: PlanCall, input_: dict[str, JsonValue]
) -> EffectRequest:
    """That a child starts, or has ended: core writes it down. Its hash leaves the context out."""
    draft = origin.draft(origin.delegation_effect_id("delegation", what), "delegation")
    draft.add("input", input_)
    draft.document["context"] = {"callId": call.call_id}
    return draft.hashed()


def _flow_effect(origin: Origin, ref: AgentRef, task: JsonValue) -> EffectRequest:
    """A flow as a whole: core runs it as a turn of its own."""
    draft = origin.draft(origin.delegation_effect_id("agent", "flow"), "agent")
    draft.add("input", {"agentId": ref.agent_id, "input": task, "path": ref.path})
    draft.add("context", {"role": "delegate", "delegationId": ref.delegation_id})
    return draft.hashed()
