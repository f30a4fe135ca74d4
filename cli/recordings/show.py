"""How effects, states and differences look on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

from cli.recordings.difference import Difference, shown
from cli.recordings.driven import Asked, DrivenEngine, End
from cli.recordings.replaying import Drift
from gateway.engine.contract import AgentSnapshot, Snapshot
from gateway.recording.reader import Recording
from protocol.transcript import Entry

INDENT: Final = "     "
"""Before what belongs to an effect or an agent."""
_ENTRY_WIDTH: Final = 140
_ENTRIES: Final = 20
"""Entries of a transcript that are shown: its end."""
VALUE_WIDTH: Final = 400


def say(line: str, file: IO[str] | None = None) -> None:
    """Prints one line. Ids and texts come from models and files: nothing in them commands a terminal."""
    print("".join(char if char.isprintable() else "\ufffd" for char in line), file=file)


def title(recording: Recording) -> str:
    """One line that says which run it is."""
    checkpoint, header = recording.checkpoint, recording.header
    agent = recording.input["manifest"].get("id", "?")
    return (
        f"{recording.path}: {recording.engine} {agent}, turn {checkpoint.get('turnId', '?')}, "
        f"segment {checkpoint.get('segment', '?')}, recorded by {header.get('made', '?')} "
        f"at {header.get('at', '?')}"
    )


def unfinished_text(recording: Recording) -> str | None:
    """Why a recording has no end, as the rest of a sentence; None when it has one."""
    if recording.broken is not None:
        return f"the recording breaks off: {recording.broken}"
    return None if recording.cut is None else f"the recording was cut: {recording.cut}"


def effect_line(number: int, verdict: str, document: Mapping[str, Any]) -> str:
    """One effect and how it compares."""
    name = document.get("toolName")
    agent = document.get("agent")
    notes = [name] if isinstance(name, str) else []
    notes += [f"of {agent['path']}"] if isinstance(agent, Mapping) and "path" in agent else []
    kind, effect_id = document.get("kind", ""), document.get("effectId", "")
    return f"{number:>4}  {verdict:<6} {kind:<10} {'  '.join([effect_id, *notes])}"


def difference_lines(difference: Difference, before: str = "recorded", after: str = "now") -> list[str]:
    """The place and both sides, below an effect."""
    return [INDENT + " " + line for line in difference.lines(before, after)]


def drift_lines(drift: Drift, number: int | None, driven: DrivenEngine | None = None) -> Iterator[str]:
    """A drift, with the number its effect has in the run."""
    if number is not None and drift.effect_id is not None:
        asked = (
            next((one for one in driven.asked if one.effect_id == drift.effect_id), None) if driven else None
        )
        document = {"effectId": drift.effect_id} if asked is None else asked.effect.document
        yield effect_line(number, "DRIFT", document)
        yield f"{INDENT} {drift.sentence}"
    else:
        yield f"DRIFT: {drift.sentence}"
    if drift.difference is not None:
        yield from difference_lines(drift.difference)


def end_line(end: End) -> str:
    """How the turn ended, with what people look for."""
    params = end.params
    if "thrown" in params:
        code = params["thrown"].get("code")
        return f"refused: {f'{code}: ' if code else ''}{params['thrown']['message']}"
    parts = [str(params.get("status"))]
    parts += [f"{name} {shown(params[name], VALUE_WIDTH)}" for name in ("output", "error") if name in params]
    if "pending" in params or "effectIds" in params:
        waits = params.get("pending", params.get("effectIds"))
        parts.append(f"waits for {shown(waits, VALUE_WIDTH)}")
    return ", ".join(parts)


def state_lines(
    asked: Asked, number: int, waiting: Sequence[str], snapshot: Snapshot | None
) -> Iterator[str]:
    """What is known at the moment an effect is asked for: the effect, what waits beside it, the agents."""
    document = asked.document()
    yield f"Stopped at effect {number}, {asked.effect_id}, before its answer."
    yield ""
    yield "It asks for:"
    yield from _members({name: value for name, value in document.items() if name not in ("input", "context")})
    yield from _input(document.get("input"))
    yield f"{INDENT}context: {shown(document.get('context'), VALUE_WIDTH)}"
    yield f"{INDENT}requestHash: {asked.effect.request_hash}"
    others = [name for name in waiting if name != asked.effect_id]
    yield ""
    yield "Waiting for answers beside it: " + (", ".join(others) or "nothing")
    if snapshot is None:
        return
    if snapshot.suspended:
        named = (f"{effect_id} ({status})" for effect_id, status in snapshot.suspended.items())
        yield f"Answered without an outcome: {', '.join(named)}"
    if snapshot.abort is not None:
        yield f"Aborted: {snapshot.abort.kind}, {shown(snapshot.abort.message, VALUE_WIDTH)}"
    if asked.effect_id not in snapshot.waiting:
        yield "Its outcome came with the run, so the engine went on from it at once, to here:"
    for agent in snapshot.agents:
        yield ""
        yield from _agent(agent)


def _agent(agent: AgentSnapshot) -> Iterator[str]:
    """One agent in the middle of its run."""
    called = "" if agent.delegation_id is None else f" (called by {agent.delegation_id})"
    step = "before its first step" if agent.step_id is None else f"step {agent.step_number} ({agent.step_id})"
    turn = "" if agent.turn_id is None else f", turn {agent.turn_id}"
    steps = "1 step" if agent.steps == 1 else f"{agent.steps} steps"
    yield f"Agent {agent.path}{called} {agent.phase}: {step}{turn}, {steps} of this segment done"
    state: dict[str, Any] = dict(agent.state)
    plan = state.pop("plan", None)
    yield from _members(state)
    if plan is not None:
        yield from _plan(plan)
    if agent.turn_patch:
        yield f"{INDENT}changed by hooks for the turn: {shown(agent.turn_patch, VALUE_WIDTH)}"
    taken = ", ".join(f"{prefix} {count}" for prefix, count in agent.counters.items())
    yield f"{INDENT}ids taken: {taken or 'none'}"
    yield from _transcript(agent.transcript)


def _plan(plan: Mapping[str, Any]) -> Iterator[str]:
    """A plan, a call or result a line, in the model's order."""
    yield f"{INDENT}plan of step {plan['stepNumber']} ({plan['stepId']}):"
    calls = {call["callId"]: call for call in plan["calls"]}
    results = {result["callId"]: result for result in plan["immediate"]}
    for place in plan["order"]:
        call_id, tool = place["callId"], place["toolName"]
        call = calls.get(call_id)
        if call is None:
            yield f"{INDENT}  {call_id} {tool}: {shown(results[call_id], _ENTRY_WIDTH)}"
            continue
        result = call.get("result", call.get("interaction"))
        said = "" if result is None else f", {shown(result, _ENTRY_WIDTH)}"
        yield f"{INDENT}  {call_id} {tool} ({call['invocationId']}): {call['status']}{said}"
        yield f"{INDENT}    args: {shown(call['args'], _ENTRY_WIDTH)}"


def _transcript(entries: Sequence[Entry]) -> Iterator[str]:
    """The end of a transcript."""
    left_out = max(len(entries) - _ENTRIES, 0)
    before = f", the last {_ENTRIES} of them" if left_out else ""
    yield f"{INDENT}transcript: {len(entries)} entries{before}"
    for index, entry in enumerate(entries[left_out:], left_out):
        text = entry.text if len(entry.text) <= _ENTRY_WIDTH else f"{entry.text[:_ENTRY_WIDTH]}…"
        yield f"{INDENT}  [{index}] {text}"


def _input(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping) or not isinstance(value.get("prompt"), list):
        yield f"{INDENT}input: {shown(value, VALUE_WIDTH)}"
        return
    for name, member in value.items():
        if name != "prompt":
            yield f"{INDENT}input.{name}: {shown(member, VALUE_WIDTH)}"
            continue
        yield f"{INDENT}input.prompt: {len(member)} items"
        for index, item in enumerate(member):
            yield f"{INDENT}  [{index}] {shown(item, _ENTRY_WIDTH)}"


def _members(document: Mapping[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        yield f"{INDENT}{name}: {shown(value, VALUE_WIDTH)}"
