"""What a run starts from, out of its lease's answer: the engine's input, the executors' context, its holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from gateway.connection import Connection
from gateway.engine.contract import RecordedOutcome, SegmentInput, YieldAfter
from gateway.executors.contract import RunContext, SandboxEvent, SandboxRouting
from gateway.runs.claims import claim_event
from gateway.runs.effects import outcome_document
from gateway.runs.host import Identity
from gateway.tokens import RunTokens
from protocol.jsjson import JsonValue
from protocol.methods import LeaseResult, RoutingSandbox, TurnStart
from protocol.transcript import Entry


def segment_input(
    start: TurnStart,
    manifest: Mapping[str, Any],
    tools: Sequence[Any],
    transcript: Sequence[Entry],
    *,
    plain: bool,
) -> SegmentInput:
    """The engine's input; `plain` as in jsjson.Parsed, over the whole lease."""
    options = start.options
    yield_after = None
    if options.yield_after is not UNSET:
        yield_after = YieldAfter(
            steps=None if options.yield_after.steps is UNSET else options.yield_after.steps,
            ms=None if options.yield_after.ms is UNSET else options.yield_after.ms,
        )
    return SegmentInput(
        manifest=manifest,
        checkpoint=_with_transcript(start.checkpoint) if start.engine == "agent" else start.checkpoint,
        transcript=transcript,
        session_tools=tools,
        outcomes={
            recorded.effect_id: RecordedOutcome(
                recorded.effect_id, recorded.request_hash, outcome_document(recorded.outcome), plain
            )
            for recorded in start.outcomes
        },
        yield_after=yield_after,
        flow_limits=None if options.flow_limits is UNSET else options.flow_limits,
        plain=plain,
    )


def _with_transcript(checkpoint: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The checkpoint with an empty transcript in its state, whatever core sent: the entries come apart
    from it (harness-api 5.2)."""
    state = checkpoint.get("state")
    if not isinstance(state, dict) or state.get("transcript") == []:
        return checkpoint
    return {**checkpoint, "state": {**state, "transcript": []}}


def run_context(
    lease: LeaseResult,
    identity: Identity,
    connection: Connection,
    tokens: RunTokens,
    root_manifest: Mapping[str, JsonValue],
    mcp_snapshot: JsonValue,
) -> RunContext:
    """What executors may know of the run."""
    grant, start = lease.run, lease.input
    run_id, session_id, routing = grant.run_id, grant.session_id, start.routing

    async def claim(event: SandboxEvent) -> None:
        await claim_event(connection, event, run_id)

    agent_id = start.manifest.get("id")
    return RunContext(
        tenant_id=identity.tenant_id,
        preference=identity.preference,
        run_id=run_id,
        session_id=session_id,
        turn_id=grant.turn_id,
        epoch=grant.epoch,
        agent_id=agent_id if isinstance(agent_id, str) else "",
        fixture_model=start.options.fixture_model,
        root_manifest=root_manifest,
        plugin_roots={} if routing.plugin_roots is UNSET else routing.plugin_roots,
        token=lambda: tokens.current(session_id),
        claim_event=claim,
        mcp_snapshot=mcp_snapshot,
        sandbox=None if routing.sandbox is UNSET else _sandbox_routing(routing.sandbox),
    )


def _sandbox_routing(sandbox: RoutingSandbox) -> SandboxRouting:
    sandbox_id = None if sandbox.sandbox_id is UNSET else sandbox.sandbox_id
    return SandboxRouting(owner_id=sandbox.owner_id, sandbox_id=sandbox_id)


def hold_seconds(start: TurnStart, limit_ms: float | None) -> tuple[float, float] | None:
    """(longest hold, what the whole run may last) in seconds; None when nothing is ever held."""
    options = start.options
    hold_ms: float = 0 if options.hold_ms is UNSET else options.hold_ms
    if limit_ms is not None:
        hold_ms = min(hold_ms, limit_ms)
    if hold_ms <= 0:
        return None
    budget_ms: float | None = None
    if options.yield_after is not UNSET and options.yield_after.ms is not UNSET:
        budget_ms = options.yield_after.ms
    return hold_ms / 1000.0, float("inf") if budget_ms is None else budget_ms / 1000.0
