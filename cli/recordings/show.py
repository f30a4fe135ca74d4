"""How effects, states and differences look on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

from cli.recordings.difference import Difference, shown
from cli.recordings.live import Asked, End, LiveEngine
from cli.recordings.replaying import Drift
from gateway.engine.contract import SegmentResult
from gateway.recording.reader import Recording

_INDENT: Final = "     "
_ENTRY_WIDTH: Final = 140
_VALUE_WIDTH: Final = 400


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
    return [_INDENT + " " + line for line in difference.lines(before, after)]


def drift_lines(drift: Drift, number: int | None, live: LiveEngine | None = None) -> Iterator[str]:
    """A drift, with the number its effect has in the run."""
    if number is not None and drift.effect_id is not None:
        asked = next((one for one in live.asked if one.effect_id == drift.effect_id), None) if live else None
        document = {"effectId": drift.effect_id} if asked is None else asked.effect.document
        yield effect_line(number, "DRIFT", document)
        yield f"{_INDENT} {drift.sentence}"
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
    parts += [f"{name} {shown(params[name], _VALUE_WIDTH)}" for name in ("output", "error") if name in params]
    if "pending" in params or "effectIds" in params:
        waits = params.get("pending", params.get("effectIds"))
        parts.append(f"waits for {shown(waits, _VALUE_WIDTH)}")
    return ", ".join(parts)


def state_lines(
    asked: Asked, number: int, waiting: Sequence[str], result: SegmentResult | None
) -> Iterator[str]:
    """What is known at the moment an effect is asked for."""
    document = asked.document()
    yield f"Stopped at effect {number}, {asked.effect_id}, before its answer."
    yield ""
    yield "It asks for:"
    yield from _members({name: value for name, value in document.items() if name not in ("input", "context")})
    yield from _input(document.get("input"))
    yield f"{_INDENT}context: {shown(document.get('context'), _VALUE_WIDTH)}"
    yield f"{_INDENT}requestHash: {asked.effect.request_hash}"
    others = [name for name in waiting if name != asked.effect_id]
    yield ""
    yield "Waiting for answers beside it: " + (", ".join(others) or "nothing")
    if result is None or result.state is None:
        return
    yield ""
    yield "State of the session (as if the turn were cancelled right here):"
    yield from _members(result.state)
    entries = result.transcript or ()
    yield f"{_INDENT}transcript: {len(entries)} entries"
    for index, entry in enumerate(entries):
        text = entry.text if len(entry.text) <= _ENTRY_WIDTH else f"{entry.text[:_ENTRY_WIDTH]}…"
        yield f"{_INDENT}  [{index}] {text}"


def _input(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping) or not isinstance(value.get("prompt"), list):
        yield f"{_INDENT}input: {shown(value, _VALUE_WIDTH)}"
        return
    for name, member in value.items():
        if name != "prompt":
            yield f"{_INDENT}input.{name}: {shown(member, _VALUE_WIDTH)}"
            continue
        yield f"{_INDENT}input.prompt: {len(member)} items"
        for index, item in enumerate(member):
            yield f"{_INDENT}  [{index}] {shown(item, _ENTRY_WIDTH)}"


def _members(document: Mapping[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        yield f"{_INDENT}{name}: {shown(value, _VALUE_WIDTH)}"
