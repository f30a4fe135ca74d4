"""Reads a recording (see `format`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from gateway.engine.contract import (
    Abort,
    Answer,
    EffectKind,
    EffectRequest,
    RecordedOutcome,
    SegmentInput,
    YieldAfter,
)
from gateway.recording.format import FORMAT, FormatError, read_abort, read_answer
from protocol.jsjson import MAX_DEPTH, JsonError, JsonValue, parse
from protocol.transcript import Entry, entries_of

MAX_FILE_BYTES: Final = 2 * 1024 * 1024 * 1024
"""A file that is larger is not read: its run would not fit into memory."""

MAX_LINE_BYTES: Final = 512 * 1024 * 1024
"""A line is one effect, one answer or a transcript; 64 MiB is the most that crosses at once."""

_MAX_DEPTH: Final = MAX_DEPTH + 50
"""A document of the wire, inside the members of a line."""


class RecordingUnreadable(Exception):
    """The file is no recording that this build can read; the text says why."""


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """An effect as it was asked for. `document` is the whole one, a model's input too."""

    number: int
    effect_id: str
    kind: str
    request_hash: str
    known: bool
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Began:
    """The engine was started."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The engine was told an answer."""

    effect_id: str
    answer: Answer
    now_ms: float


@dataclass(frozen=True, slots=True)
class AbortTold:
    """The engine was told that its run is aborted."""

    abort: Abort


Told = Began | Answered | AbortTold


@dataclass(slots=True)
class Moment:
    """Something the engine was told, and the effects it asked for then."""

    told: Told
    effects: list[RecordedEffect] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """The run's output. `released` is the reason when the run was given back instead."""

    method: str
    params: Mapping[str, Any]
    released: str | None


@dataclass(slots=True)
class Recording:
    """One run. `cut` says why it stops before its end; `broken` is set when it stops in the middle."""

    path: Path
    header: Mapping[str, Any]
    input: Mapping[str, Any]
    transcript: Sequence[Entry]
    left_out: Sequence[str]
    manifest_hash: str | None
    moments: list[Moment] = field(default_factory=list)
    end: RecordedEnd | None = None
    cut: str | None = None
    broken: str | None = None

    @property
    def engine(self) -> Literal["agent", "flow"]:
        """The kind of engine."""
        return cast(Literal["agent", "flow"], self.input["engine"])

    @property
    def checkpoint(self) -> Mapping[str, Any]:
        """The checkpoint, its state without the transcript."""
        return cast(Mapping[str, Any], self.input["checkpoint"])

    def effects(self) -> list[RecordedEffect]:
        """All effects, in the order in which they were asked for."""
        return [effect for moment in self.moments for effect in moment.effects]

    def segment(self, observe: Callable[[EffectRequest, bool], None] | None = None) -> SegmentInput:
        """What the engine started from."""
        options = self.input.get("options", {})
        limits = options.get("yieldAfter")
        return SegmentInput(
            manifest=self.input["manifest"],
            checkpoint=self.checkpoint,
            transcript=self.transcript,
            session_tools=self.input.get("sessionTools", ()),
            outcomes={
                known["effectId"]: RecordedOutcome(known["effectId"], known["requestHash"], known["outcome"])
                for known in self.input["outcomes"]
            },
            yield_after=None if limits is None else YieldAfter(limits.get("steps"), limits.get("ms")),
            flow_limits=options.get("flowLimits"),
            observe=observe,
        )


def read_recording(path: Path) -> Recording:
    """Reads a file. Raises RecordingUnreadable, and OSError when it can't be opened."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise RecordingUnreadable(f"is larger than {MAX_FILE_BYTES} bytes, so it is not read")
    with path.open("rb") as file:
        return _read(path, _Lines(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")))


class _Lines:
    """The lines of a file as objects."""

    def __init__(self, texts: Iterator[bytes]) -> None:
        self._texts = texts
        self.number = 0

    def next(self) -> dict[str, Any] | None:
        """The next line; None at the end. Raises FormatError for one that is not whole."""
        text = next(self._texts, None)
        if text is None:
            return None
        self.number += 1
        if len(text) > MAX_LINE_BYTES:
            raise FormatError(f"line {self.number} is longer than {MAX_LINE_BYTES} bytes")
        try:
            value = parse(text, max_depth=_MAX_DEPTH).value
        except JsonError as error:
            if not text.endswith(b"\n"):
                raise FormatError(f"line {self.number}, the last one, is not whole") from None
            raise FormatError(f"line {self.number} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise FormatError(f"line {self.number} is not an object")
        return value


def _read(path: Path, lines: _Lines) -> Recording:
    try:
        header, start = lines.next(), lines.next()
    except FormatError as error:
        raise RecordingUnreadable(f"is not a recording: {error}") from None
    if header is None or header.get("type") != "recording":
        raise RecordingUnreadable("is not a recording: its first line does not say so")
    version = header.get("format")
    if version != FORMAT:
        made = header.get("made", "another program")
        raise RecordingUnreadable(
            f"has the format {version!r} ({made} made it); this build reads format {FORMAT}"
        )
    if start is None:
        raise RecordingUnreadable("breaks off before it says what its run started from")
    recording = _start(path, header, start)
    body = _Body(recording)
    try:
        while (line := lines.next()) is not None:
            if recording.end is not None or recording.cut is not None:
                raise FormatError(f"line {lines.number} comes after the end")
            try:
                body.take(line)
            except FormatError as error:
                raise FormatError(f"line {lines.number}: {error}") from None
    except FormatError as error:
        recording.broken = str(error)
    if recording.end is None and recording.cut is None and recording.broken is None:
        recording.broken = "it stops before the end of its run"
    return recording


def _start(path: Path, header: Mapping[str, Any], line: Mapping[str, Any]) -> Recording:
    given, transcript = line.get("input"), line.get("transcript")
    if line.get("type") != "start" or not isinstance(given, dict) or not isinstance(transcript, list):
        raise RecordingUnreadable(
            "is not a recording: its second line does not say what the run started from"
        )
    shapes = {"manifest": dict, "checkpoint": dict, "outcomes": list, "options": dict}
    for name, shape in shapes.items():
        if not isinstance(given.get(name), shape):
            raise RecordingUnreadable(f"is damaged: its start has no usable {name}")
    if not isinstance(given["options"].get("yieldAfter", {}), dict):
        raise RecordingUnreadable("is damaged: its start has no usable options")
    if not isinstance(given.get("routing", {}), dict) or not isinstance(given.get("sessionTools", []), list):
        raise RecordingUnreadable("is damaged: its start has no usable routing or session tools")
    left_out, own_hash = line.get("leftOut", []), line.get("manifestHash")
    if not isinstance(left_out, list) or not all(isinstance(place, str) for place in left_out):
        raise RecordingUnreadable("is damaged: it does not say what was left out of it")
    if own_hash is not None and not isinstance(own_hash, str):
        raise RecordingUnreadable("is damaged: its manifest's hash is not a text")
    if given.get("engine") not in ("agent", "flow"):
        raise RecordingUnreadable("is damaged: its start names no engine")
    if not all(_is_known(outcome) for outcome in given["outcomes"]):
        raise RecordingUnreadable("is damaged: its start has an unusable outcome")
    return Recording(
        path=path,
        header=header,
        input=given,
        transcript=entries_of(transcript),
        left_out=left_out,
        manifest_hash=own_hash,
    )


def _is_known(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("effectId"), str)
        and isinstance(value.get("requestHash"), str)
        and isinstance(value.get("outcome"), dict)
        and "value" in value["outcome"]
    )


class _Body:
    """The lines between start and end."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._inputs: dict[str, Mapping[str, Any]] = {}
        self._count = 0

    def take(self, line: Mapping[str, Any]) -> None:
        """Adds one line. Raises FormatError."""
        kind, recording = line.get("type"), self._recording
        if kind == "begin":
            recording.moments.append(Moment(Began(_number(line, "now"))))
        elif kind == "answer":
            told = Answered(_text(line, "effectId"), read_answer(line.get("answer")), _number(line, "now"))
            recording.moments.append(Moment(told))
        elif kind == "abort":
            recording.moments.append(Moment(AbortTold(read_abort(line))))
        elif kind == "effect":
            if not recording.moments:
                raise FormatError("an effect comes before the engine began")
            recording.moments[-1].effects.append(self._effect(line))
        elif kind == "end":
            params = line.get("params")
            if not isinstance(params, dict):
                raise FormatError("the end has no params")
            released = _text(line, "released") if "released" in line else None
            recording.end = RecordedEnd(_text(line, "method"), params, released)
        elif kind == "cut":
            recording.cut = _text(line, "reason")

    def _effect(self, line: Mapping[str, Any]) -> RecordedEffect:
        document = line.get("document")
        if not isinstance(document, dict):
            raise FormatError("an effect has no document")
        effect_id, kind = _text(line, "effectId"), _text(line, "kind")
        if "more" in line:
            document = {**document, "input": self._more(line["more"])}
        if kind == "model" and isinstance(document.get("input"), dict):
            self._inputs[effect_id] = document["input"]
        self._count += 1
        return RecordedEffect(
            number=self._count,
            effect_id=effect_id,
            kind=cast(EffectKind, kind),
            request_hash=_text(line, "requestHash"),
            known=line.get("known") is True,
            document=document,
        )

    def _more(self, more: Any) -> dict[str, JsonValue]:
        like = self._inputs.get(str(more.get("like"))) if isinstance(more, dict) else None
        if like is None or not isinstance(more.get("prompt"), list):
            raise FormatError("an effect's prompt goes on from one that is not there")
        return {**like, "prompt": [*like.get("prompt", ()), *more["prompt"]]}


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line.get(name)
    if not isinstance(value, str):
        raise FormatError(f"{name} is not a text")
    return value


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{name} is not a number")
    return value
