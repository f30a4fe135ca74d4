"""Records runs: what an engine is told and asks for, in order, handed to the writer line by line.

Everything the thread gets is never changed afterwards: shared manifests, texts of entries, pieces of
prompts. Documents an engine goes on using are written to text at once, always the fast way: what it writes
otherwise than JavaScript reads back as the same value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from gateway.engine.contract import Abort, Answer, EffectRequest, Engine, RecordedOutcome, SegmentInput, Step
from gateway.recording.folder import RecordingFolder, file_stem
from gateway.recording.format import FORMAT, abort_members, answer_document
from gateway.recording.left_out import Place, pointer, without_environment, without_secrets
from gateway.recording.prompts import Prompts
from gateway.recording.writer import RecordingFile, Writer
from gateway.runs.manifests import SharedManifest
from protocol.canonical import manifest_hash
from protocol.jsjson import JsonValue, dumps_bytes
from protocol.methods import Grant, TurnStart
from protocol.transcript import list_size
from services.common.logs import error_text, get_logger

CLOSE_LIMIT_S: Final = 2.0
"""How long the end of the process waits for lines that are not on the disk."""

_SMALL: Final = 4096
"""What a line is taken for whose size isn't known before it is made."""


@dataclass(frozen=True, slots=True)
class UsedRouting:
    """What the run really used of its routing, and the tenant it was executed for."""

    root_manifest: SharedManifest
    mcp_snapshot: JsonValue = None
    tenant_id: str = ""
    preference: str = ""


class Recorder:
    """Makes recordings in one folder (`WHIPPLETREE_RECORD_DIR`)."""

    def __init__(
        self,
        folder: RecordingFolder,
        *,
        max_file_bytes: int,
        made: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer = Writer(folder, max_file_bytes=max_file_bytes)
        self._made = made
        self._clock = clock

    @classmethod
    def in_folder(cls, path: str, *, max_file_bytes: int, max_folder_bytes: int, made: str) -> Recorder:
        """A recorder whose folder is there. Raises OSError when it can't be."""
        folder = RecordingFolder(Path(path), max_bytes=max_folder_bytes)
        folder.prepare()
        return cls(folder, max_file_bytes=max_file_bytes, made=made)

    def begin(
        self, grant: Grant, start: TurnStart, segment: SegmentInput, routing: UsedRouting
    ) -> RunRecording:
        """The recording of a run whose segment starts from `segment`. Never fails."""
        iso, stamp = wall_clock_stamp(self._clock())
        recording = RunRecording(self._writer, RecordingFile(file_stem(stamp, grant.run_id)))
        recording.header(
            {
                "type": "recording",
                "format": FORMAT,
                "made": self._made,
                "at": iso,
                "runId": grant.run_id,
                "sessionId": grant.session_id,
                "turnId": grant.turn_id,
                "epoch": grant.epoch,
                "tenantId": routing.tenant_id,
                "preference": routing.preference,
            }
        )
        recording.start(start, segment, routing)
        return recording

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> bool:
        """Writes what waits; False when the disk is too slow for that."""
        whole = self._writer.close(limit_s)
        if not whole:
            get_logger().warning("harness_recording_failed", error="the disk is too slow; some are not whole")
        return whole


class RunRecording:
    """One run's recording. No method fails, whatever it is given."""

    def __init__(self, writer: Writer, file: RecordingFile) -> None:
        self._writer = writer
        self._file = file
        self._asked = 0
        self._prompts = Prompts()

    def header(self, document: Mapping[str, JsonValue]) -> None:
        """The first line."""
        self._line(document)

    def start(self, start: TurnStart, segment: SegmentInput, routing: UsedRouting) -> None:
        """What the segment starts from."""
        with _Guarded(self):
            checkpoint = _text(dict(segment.checkpoint))
            size = list_size(segment.transcript) + len(checkpoint) + routing.root_manifest.text_bytes
            self._writer.put(self._file, lambda: _start_line(start, segment, checkpoint, routing), size)

    def observe(self, effect: EffectRequest, known: bool) -> None:
        """The engine asks for an effect."""
        with _Guarded(self):
            self._asked += 1
            head = _text(
                {
                    "type": "effect",
                    "n": self._asked,
                    "effectId": effect.effect_id,
                    "kind": effect.kind,
                    "requestHash": effect.request_hash,
                    "known": known,
                }
            )[:-1]
            document = _text(dict(effect.document))
            call = effect.model_call
            if call is None:
                line = b'%b,"document":%b}' % (head, document)
                self._writer.put(self._file, lambda: line, len(line))
                return
            prompts, parts = self._prompts, call.parts

            def build() -> bytes:
                return b"%b,%b}" % (head, prompts.line_end(effect.effect_id, document, parts))

            self._writer.put(self._file, build, len(head) + len(document) + sum(map(len, parts)))

    def begin(self, now_ms: float) -> None:
        """The engine starts."""
        self._line({"type": "begin", "now": now_ms})

    def answer(self, effect_id: str, answer: Answer, now_ms: float) -> None:
        """The engine is told an answer."""
        self._line(
            {"type": "answer", "effectId": effect_id, "now": now_ms, "answer": answer_document(answer)}
        )

    def abort(self, abort: Abort) -> None:
        """The engine is told that the run is aborted."""
        self._line({"type": "abort", **abort_members(abort)})

    def end(self, method: str, params: Mapping[str, JsonValue]) -> None:
        """The run's output, which is about to be sent."""
        with _Guarded(self):
            # Nobody works on an output any more, so it may be made to text later.
            self._writer.put(self._file, lambda: _end_line(method, params, None), _size_of(params), last=True)

    def released(self, reason: str, output: Callable[[], tuple[str, Mapping[str, JsonValue]]]) -> None:
        """The run is given back. `output` makes what would have been sent otherwise."""
        with _Guarded(self):
            self._writer.put(self._file, lambda: _end_line(*output(), reason), _SMALL, last=True)

    def close(self) -> None:
        """The run is over; one without an output was cut off."""
        self._writer.cut(self._file, "the run ended without an output")

    def give_up(self, error: Exception) -> None:
        """Something could not be recorded: a fault of ours, which the run must not feel."""
        get_logger().warning("harness_recording_failed", error=error_text(error))
        self._writer.cut(self._file, "something could not be recorded")

    def _line(self, document: Mapping[str, JsonValue]) -> None:
        with _Guarded(self):
            line = _text(dict(document))
            self._writer.put(self._file, lambda: line, len(line))


class _Guarded:
    """Keeps what goes wrong in a recording away from its run."""

    def __init__(self, recording: RunRecording) -> None:
        self._recording = recording

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._recording.give_up(error)
        return True


class RecordedEngine:
    """An engine whose every call is recorded before it gets it."""

    def __init__(self, engine: Engine, recording: RunRecording) -> None:
        self._engine = engine
        self._recording = recording

    def start(self, now_ms: float) -> Step:
        """As the engine's own. Raises EngineRefused."""
        self._recording.begin(now_ms)
        return self._engine.start(now_ms)

    def resolve(self, effect_id: str, answer: Answer, now_ms: float) -> Step:
        """As the engine's own."""
        self._recording.answer(effect_id, answer, now_ms)
        return self._engine.resolve(effect_id, answer, now_ms)

    def abort(self, abort: Abort) -> Step:
        """As the engine's own."""
        self._recording.abort(abort)
        return self._engine.abort(abort)


def wall_clock_stamp(seconds: float) -> tuple[str, str]:
    """A moment as ISO 8601 in UTC with milliseconds, and as it stands in a file's name."""
    whole, millis = time.gmtime(seconds), int(seconds * 1000) % 1000
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", whole) + f".{millis:03d}Z"
    return iso, time.strftime("%Y%m%dT%H%M%S", whole) + f"{millis:03d}Z"


def _text(value: JsonValue) -> bytes:
    return dumps_bytes(value, plain=True)


def _start_line(start: TurnStart, segment: SegmentInput, checkpoint: bytes, routing: UsedRouting) -> bytes:
    clean, places = without_secrets(segment.manifest)
    left_out: list[Place] = [("manifest", *place) for place in places]
    used, more = _routing(start, segment.manifest, routing)
    left_out += [("routing", *place) for place in more]
    members = {
        "type": _text(start.type),
        "engine": _text(start.engine),
        "manifest": _text(dict(clean)),
        "checkpoint": checkpoint,
        "outcomes": _text([_known(outcome) for outcome in segment.outcomes.values()]),
        "transcript": _text({"cursor": start.transcript.cursor}),
        "options": _text(msgspec.to_builtins(start.options)),
        "routing": _text(used),
    }
    if start.session_tools is not UNSET or segment.session_tools:
        members["sessionTools"] = _text(list(segment.session_tools))
    line = {
        "type": b'"start"',
        "input": _object(members),
        "transcript": b"[%b]" % ",".join([entry.text for entry in segment.transcript]).encode(),
        "leftOut": _text([pointer(place) for place in left_out]),
    }
    if places:
        line["manifestHash"] = _text(manifest_hash(segment.manifest))
    return _object(line)


def _known(recorded: RecordedOutcome) -> dict[str, JsonValue]:
    return {
        "effectId": recorded.effect_id,
        "requestHash": recorded.request_hash,
        "outcome": dict(recorded.outcome),
    }


def _routing(
    start: TurnStart, manifest: Mapping[str, Any], used: UsedRouting
) -> tuple[dict[str, Any], list[Place]]:
    """The routing as it is written, and where something was left out of it."""
    document: dict[str, Any] = {}
    left_out: list[Place] = []
    root = used.root_manifest.document
    if root is not manifest:
        clean, places = without_secrets(root)
        document["rootManifest"] = clean
        left_out += [("rootManifest", *place) for place in places]
    given = start.routing
    if given.plugin_roots is not UNSET:
        document["pluginRoots"] = given.plugin_roots
    if used.mcp_snapshot is not None:
        document["mcpSnapshot"] = used.mcp_snapshot
    if given.sandbox is not UNSET:
        sandbox, places = without_environment(msgspec.to_builtins(given.sandbox))
        document["sandbox"] = sandbox
        left_out += [("sandbox", *place) for place in places]
    return document, left_out


def _end_line(method: str, params: Mapping[str, JsonValue], released: str | None) -> bytes:
    own = {name: value for name, value in params.items() if name != "runId"}
    given_back = {} if released is None else {"released": released}
    return _text({"type": "end", "method": method, "params": own, **given_back})


def _object(members: Mapping[str, bytes]) -> bytes:
    return b"{%b}" % b",".join([b'"%b":%b' % (name.encode(), text) for name, text in members.items()])


def _size_of(params: Mapping[str, Any]) -> int:
    """About how long an output's text is: its transcript edits, and little else."""
    edits = params.get("transcript") or ()
    return _SMALL + sum(len(entry.text) for edit in edits for entry in edit["entries"])
