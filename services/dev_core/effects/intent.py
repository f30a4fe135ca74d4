"""`effect.intent`: who carries an effect out, or what it came to already (harness-api 8.3).

A tool that is no MCP tool and no sandbox tool belongs to the agent's Action endpoint. Without one, a tool
call is completed at once with a failed outcome, `endpoint.missing`, that the model reads; a hook is refused
instead, because an empty result would quietly let everything pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from protocol import jsjson
from protocol.canonical import canonical_request
from protocol.errors import HarnessApiError
from protocol.methods import EffectIntent
from services.dev_core.effects.held import (
    HandedOut,
    HeldRun,
    OwnedEffect,
    check_effect_id,
    own_effect,
    storable,
    turn_cancelled,
)
from services.dev_core.effects.outcome import completed_event
from services.dev_core.flows import linking
from services.dev_core.manifests import ManifestFacts, McpTools, runner_of
from services.dev_core.store import agents, effects, events
from services.dev_core.store.effects import Effect, EffectStatus, Runner
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.ending import AGENT_FAILED, failed_agent

NULL_OUTCOME: Final = '{"value":null}'
ENDPOINT_MISSING: Final = "endpoint.missing"
_FLOW_KINDS: Final = frozenset({"agent", "tool", "fn", "verify"})

_STATUS_OF: Final[Mapping[Runner, EffectStatus]] = {"action": "pending", "linked": "pending"}
"""Of a new effect; what the harness carries out is invoking."""

IntentStatus: TypeAlias = Literal["execute", "rejoin", "save", "pending", "uncertain", "completed"]


class Asked(msgspec.Struct, frozen=True):
    """One `effect.intent`. `document` is the effect as it came; `plain` as in jsjson.Parsed."""

    effect: EffectIntent
    document: Mapping[str, Any]
    request_hash: str
    plain: bool


class Decision(msgspec.Struct, frozen=True):
    """The answer; `outcome` is JSON text. `action` says that an Action is to be posted.

    With `save` there is no answer yet: the core saves an artifact first.
    """

    status: IntentStatus
    outcome: str | None = None
    action: bool = False
    handed_out: HandedOut | None = None
    """What the harness is to carry out."""

    def answer(self) -> dict[str, Any]:
        """The result of the request."""
        match self.status:
            case "completed":
                assert self.outcome is not None
                return {"status": "completed", "outcome": jsjson.RawJson(self.outcome)}
            case "rejoin":
                return {"status": "execute", "rejoin": True}
            case "save":
                raise AssertionError("an artifact that is not saved yet has no answer")
            case status:
                return {"status": status}


@dataclass(frozen=True, slots=True)
class Recovery:
    """Which effects a later run can join while they run: those that somebody keeps by their ids."""

    models: bool

    def joins(self, runner: Runner) -> bool:
        """Whether an effect with that runner may be handed out once more."""
        return runner == "remote-mcp" or (runner == "model" and self.models)


def check_asked(run: HeldRun, asked: Asked) -> None:
    """What can be told from the intent and the grant alone. Raises HarnessApiError `invalid`."""
    effect = asked.effect
    if effect.session_id != run.session_id or effect.turn_id != run.turn_id:
        raise HarnessApiError("invalid", "The effect belongs to another session or turn than its run")
    if effect.agent_id != run.agent_id or effect.manifest_hash != run.manifest_hash:
        raise HarnessApiError("invalid", "The effect names another agent or manifest than its run")
    check_effect_id(effect.effect_id, run)
    if effect.kind == "model" and effect.input is not UNSET:
        raise HarnessApiError("invalid", "A model call's input never crosses: leave it out of the intent")
    if run.engine != "agent":
        _check_of_flow(effect)
        return
    if effect.kind in ("fn", "verify"):
        raise HarnessApiError(
            "invalid", f"An effect of kind {effect.kind} belongs to a flow, not to an agent"
        )
    if effect.kind == "agent" and effect.context.get("role") != "delegate":
        raise HarnessApiError("invalid", "An agent asks for another one only as a delegate")
    if effect.kind == "agent":
        _check_agent_input(effect)
    if effect.kind == "tool" and (effect.tool_name is UNSET or effect.capability_id is UNSET):
        raise HarnessApiError("invalid", "A tool effect names its tool and its capability")
    if effect.kind == "hook" and effect.hook is UNSET:
        raise HarnessApiError("invalid", "A hook effect names its hook")


def _check_of_flow(effect: EffectIntent) -> None:
    if effect.kind not in _FLOW_KINDS:
        raise HarnessApiError("invalid", f"A flow has no effects of kind {effect.kind}")
    if not all(isinstance(text, str) and text for text in (effect.path, effect.key, effect.iterations)):
        raise HarnessApiError("invalid", "An effect of a flow has a path, a key and iterations")
    if effect.kind == "agent":
        _check_agent_input(effect)
    elif effect.kind == "tool" and (
        effect.capability_id is not UNSET or not isinstance(effect.context.get("toolName"), str)
    ):
        raise HarnessApiError("invalid", "A tool of a flow is named in its context and has no capability")


def _check_agent_input(effect: EffectIntent) -> None:
    given: Any = None if effect.input is UNSET else effect.input
    fits = isinstance(given, dict) and all(isinstance(given.get(name), str) for name in ("agentId", "path"))
    if fits and "flow" in given:
        fits = isinstance(given["flow"], list) and all(isinstance(name, str) for name in given["flow"])
    if not fits:
        raise HarnessApiError(
            "invalid", "An agent effect's input is {agentId, input, path, flow?, manifest?}"
        )


def decide(
    tx: Tx,
    run: HeldRun,
    asked: Asked,
    *,
    facts: ManifestFacts,
    mcp: McpTools,
    recovery: Recovery,
    abort_message: str | None,
    now_ms: int,
) -> Decision:
    """Commits what becomes of the effect. Raises HarnessApiError; then nothing was written."""
    effect_id = asked.effect.effect_id
    row = own_effect(tx, run, effect_id)
    if not row.active:
        raise turn_cancelled(run)
    if abort_message is not None:
        raise HarnessApiError("internal", abort_message)
    if row.status is not None:
        if row.request_hash != asked.request_hash:
            raise HarnessApiError(
                "effect_drift", f"The effect {effect_id} was asked for with another request"
            )
        return _known(tx, row, recovery, now_ms)
    if asked.effect.kind == "agent":
        return _new_agent(tx, run, asked, facts, now_ms)
    return _new(tx, run, asked, _runner(run, facts, mcp, asked), now_ms)


def _known(tx: Tx, row: OwnedEffect, recovery: Recovery, now_ms: int) -> Decision:
    match row.status:
        case "completed":
            return Decision("completed", row.outcome)
        case "pending":
            return Decision("pending")
        case "invoking" if recovery.joins(row.runner):
            effects.count_attempt(tx, row.session_id, row.effect_id)
            events.append(tx, row.session_id, "effect.rejoined", row.turn_id, row.label, now_ms)
            return Decision("rejoin", handed_out=HandedOut(row.kind, row.label))
        case "invoking":
            error = "An earlier run started this effect and nobody knows its outcome"
            effects.make_uncertain(tx, row.session_id, row.effect_id, error, now_ms)
            lost = {"effectId": row.effect_id, "message": error}
            events.append(tx, row.session_id, "effect.uncertain", row.turn_id, lost, now_ms)
            return Decision("uncertain")
        case _:
            return Decision("uncertain")


def _runner(run: HeldRun, facts: ManifestFacts, mcp: McpTools, asked: Asked) -> Runner:
    effect = asked.effect
    if run.engine != "agent":
        return "action"
    if effect.kind == "model":
        return "model"
    if effect.kind == "delegation":
        return "core"
    if effect.kind == "hook":
        return "action"
    agent_id = None if effect.agent is UNSET else effect.agent.id
    runner = runner_of(facts, mcp, agent_id, str(effect.capability_id), str(effect.tool_name))
    if runner is None:
        raise HarnessApiError(
            "invalid",
            f"The capability {effect.capability_id} declares no tool {effect.tool_name} and the session "
            "has no such MCP tool",
        )
    return runner


def _new_agent(tx: Tx, run: HeldRun, asked: Asked, facts: ManifestFacts, now_ms: int) -> Decision:
    """Queues the agent in a linked session; at once a failed outcome when none can carry it out."""
    _check_hash(asked)
    effect_id = asked.effect.effect_id
    try:
        agent = linking.agent_of(tx, facts, asked.document)
        linking.queue(tx, run.session_id, effect_id, asked.document, agent, now_ms)
    except linking.Unlinkable as error:
        outcome = failed_agent(AGENT_FAILED, str(error))
        event = completed_event(asked.effect.kind)
        _record(tx, run, asked, runner="core", event=event, now_ms=now_ms, outcome=outcome)
        return Decision("completed", outcome)
    _record(tx, run, asked, runner="linked", event=None, now_ms=now_ms)
    return Decision("pending")


def _new(tx: Tx, run: HeldRun, asked: Asked, runner: Runner, now_ms: int) -> Decision:
    if runner != "model":
        _check_hash(asked)
    if asked.effect.kind == "delegation":
        settled = asked.effect.effect_id.endswith(":settled")
        kind = "delegation.completed" if settled else "delegation.started"
        _record(tx, run, asked, runner=runner, event=kind, now_ms=now_ms, outcome=NULL_OUTCOME)
        return Decision("completed", NULL_OUTCOME)
    if runner != "action":
        label = _record(tx, run, asked, runner=runner, event=None, now_ms=now_ms)
        if runner == "artifact":
            return Decision("save")
        return Decision("execute", handed_out=HandedOut(asked.effect.kind, label))
    url = agents.actions_url_of_session(tx, run.session_id)
    if url is not None:
        _record(tx, run, asked, runner=runner, event="action.pending", now_ms=now_ms)
        effects.insert_action(tx, run.session_id, asked.effect.effect_id, url, now_ms)
        return Decision("pending", action=True)
    if asked.effect.kind == "hook":
        raise HarnessApiError(
            "invalid",
            f"The agent {run.agent_id} has hooks and no Action endpoint: put it with actions.url",
        )
    outcome = jsjson.dumps({"value": _no_endpoint(run, asked)})
    event = completed_event(asked.effect.kind)
    _record(tx, run, asked, runner="core", event=event, now_ms=now_ms, outcome=outcome)
    return Decision("completed", outcome)


def _no_endpoint(run: HeldRun, asked: Asked) -> dict[str, str]:
    effect = asked.effect
    if effect.kind == "tool":
        name = effect.context.get("toolName") if effect.tool_name is UNSET else effect.tool_name
        what = f"The tool {name}"
    else:
        what = f"The function {effect.key}"
    return {
        "kind": "failed",
        "code": ENDPOINT_MISSING,
        "message": f"{what} of {'agent' if run.engine == 'agent' else 'workflow'} {run.agent_id} runs on an "
        "Action endpoint and none is configured: put the agent with actions.url",
    }


def _check_hash(asked: Asked) -> None:
    identity = dict(asked.document)
    if identity["kind"] == "delegation":
        del identity["context"]
    digest = hashlib.sha256(canonical_request(identity, plain=asked.plain)).hexdigest()
    if digest != asked.request_hash:
        raise HarnessApiError("invalid", f"The request hash of {asked.effect.effect_id} is not its effect's")


def _record(
    tx: Tx,
    run: HeldRun,
    asked: Asked,
    *,
    runner: Runner,
    event: str | None,
    now_ms: int,
    outcome: str | None = None,
) -> str:
    """Writes the effect's row, and an event that shows the outcome when there is one; the effect's label.

    What the harness carries out gets its event with its outcome: the row says when it was handed out.
    """
    effect = asked.effect
    call_id = effect.context.get("callId")
    label = jsjson.dumps(_label(asked), plain=asked.plain)
    effects.insert(
        tx,
        Effect(
            session_id=run.session_id,
            effect_id=effect.effect_id,
            turn_id=run.turn_id,
            segment=run.segment,
            kind=effect.kind,
            call_id=storable(call_id) if isinstance(call_id, str) else None,
            runner=runner,
            status="completed" if outcome is not None else _STATUS_OF.get(runner, "invoking"),
            request_hash=asked.request_hash,
            started_ms=now_ms,
            ended_ms=None if outcome is None else now_ms,
            attempts=1,
            error=None,
            label=label,
            request=jsjson.dumps(asked.document, plain=asked.plain),
            outcome=outcome,
        ),
    )
    if event is not None:
        shown = None if outcome is None else effect.effect_id
        events.append(tx, run.session_id, event, run.turn_id, label, now_ms, effect_id=shown)
    return label


def _label(asked: Asked) -> dict[str, Any]:
    """What every event of an effect says of it; of its input only a delegation's. A model call that sums
    the conversation up is told from one that answers."""
    document = asked.document
    label: dict[str, Any] = {"effectId": asked.effect.effect_id, "kind": document["kind"]}
    for name in ("agent", "capabilityId", "toolName", "hook", "path", "key", "iterations"):
        if name in document:
            label[name] = document[name]
    for name in ("toolName", "role"):
        if name in asked.effect.context:
            label.setdefault(name, asked.effect.context[name])
    if document["kind"] == "agent":
        label["agentId"] = document["input"]["agentId"]
    call_id = asked.effect.context.get("callId")
    if isinstance(call_id, str):
        label["callId"] = call_id
    if document["kind"] == "delegation" and "input" in document:
        label["input"] = document["input"]
    if document["kind"] == "model" and "compaction" in asked.effect.context:
        label["compaction"] = asked.effect.context["compaction"]
    return label
