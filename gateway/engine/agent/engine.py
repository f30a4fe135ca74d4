"""The agent engine: all checks in their order, then the loop (agent-engine 4.2, 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.engine.agent.checkpoint import Checkpoint, read_checkpoint
from gateway.engine.agent.context import AgentContext
from gateway.engine.agent.definition import AgentDefinition
from gateway.engine.agent.delegation import Delegations
from gateway.engine.agent.ids import IdScope
from gateway.engine.agent.input import Continue, Event, read_input
from gateway.engine.agent.loop import AgentRun, Ending
from gateway.engine.agent.origin import Origin
from gateway.engine.agent.resume import refuse_unless_message, resume
from gateway.engine.agent.rollover import Rollover
from gateway.engine.agent.saved_plan import check_contract, check_plan
from gateway.engine.agent.state import AgentState
from gateway.engine.agent.state_check import check_combination, check_state
from gateway.engine.contract import ABSENT, Absent, AgentSnapshot, SegmentInput, SegmentResult
from gateway.engine.definitions import AgentManifest, DefinitionCache
from gateway.engine.failures import EngineFailure, WorkFailed
from gateway.engine.host import Host
from gateway.engine.segment import Prepared
from gateway.engine.tasks import Work
from protocol.jsjson import JsonValue


def prepare_agent(segment: SegmentInput, definitions: DefinitionCache, host: Host) -> Prepared:
    """Checks everything a segment starts from, and makes its work. Raises EngineRefused."""
    manifest = definitions.manifest(segment.manifest)
    checkpoint = read_checkpoint(segment.checkpoint, manifest)
    definition = definitions.agent(manifest, segment.session_tools)
    state = _read_state(checkpoint, segment, manifest, definition)
    event = read_input(checkpoint.input)
    _apply_input(state, event, definition, host)
    context = AgentContext(
        host=host,
        origin=Origin(
            session_id=checkpoint.session_id,
            turn_id=checkpoint.turn_id,
            segment=checkpoint.segment,
            agent_id=definition.agent_id,
            manifest_hash=manifest.hash,
        ),
        definition=definition,
        state=state,
        ids=IdScope.of_segment(checkpoint.turn_id, checkpoint.segment),
        info=checkpoint.info,
    )
    children = _delegations(context, definitions, segment.session_tools)
    run = AgentRun(
        context, Rollover(segment.yield_after, host.now_ms), None if children is None else children.run
    )

    def look(waiting: Sequence[str]) -> Sequence[AgentSnapshot]:
        return [run.snapshot(waiting), *(() if children is None else children.snapshots(waiting))]

    return Prepared(_segment(run, state, event, host), look)


def _delegations(
    context: AgentContext, definitions: DefinitionCache, session_tools: Sequence[Any]
) -> Delegations | None:
    """What runs the agents that the root has as tools; None when it has none."""
    if all(tool.agent is None for tool in context.definition.tools.tools):
        return None

    def definition_of(manifest: Mapping[str, Any]) -> AgentDefinition:
        return definitions.child(manifest, session_tools, context.definition.agent_id)

    return Delegations(context, definition_of)


def _read_state(
    checkpoint: Checkpoint, segment: SegmentInput, manifest: AgentManifest, definition: AgentDefinition
) -> AgentState:
    """Checks 6 to 9."""
    document: Any = checkpoint.state
    if document is ABSENT:
        return AgentState(
            agent_id=definition.agent_id,
            manifest_hash=manifest.hash,
            execution_id=checkpoint.session_id,
            output_contract=definition.output_contract,
        )
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "executionVersion"}
    transcript = check_state(document, segment.transcript)
    state = AgentState.from_document(document, transcript)
    check_contract(state.output_contract, definition)
    check_combination(document, checkpoint.input)
    if state.plan is not None:
        check_plan(state.plan, definition)
    return state


def _apply_input(state: AgentState, event: Event, definition: AgentDefinition, host: Host) -> None:
    """Check 11."""
    if state.status != "paused":
        refuse_unless_message(event)
    elif not (host.aborted and isinstance(event, Continue)):
        resume(state, event, definition.output_schema_of)


def _segment(run: AgentRun, state: AgentState, event: Event, host: Host) -> Work[SegmentResult]:
    try:
        ending = yield from run.run(event)
    except WorkFailed:
        suspension = host.suspension()
        if suspension is None:
            raise
        return suspension
    # Whatever else happened, an effect without an outcome decides (agent-engine 18.3).
    return host.suspension() or _result(ending, state)


def _result(ending: Ending, state: AgentState) -> SegmentResult:
    return SegmentResult(
        status=ending.status,
        state=state.document(),
        transcript=state.transcript.leave(),
        output=ending.output,
        pending=ending.pending,
        error=_error(ending.error),
    )


def _error(failure: EngineFailure | None) -> JsonValue | Absent:
    if failure is None:
        return ABSENT
    error: dict[str, JsonValue] = {"code": failure.code, "message": failure.message}
    if failure.scope is not None:
        error["scope"] = failure.scope
    return error
