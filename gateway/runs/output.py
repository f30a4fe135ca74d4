"""How the end of a segment is reported to core (harness-api 5.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.engine.contract import ABSENT, SegmentResult
from protocol.jsjson import JsonValue, RawJson
from protocol.transcript import Entry, updates

_METHODS: Final = {
    "completed": "turn.completed",
    "paused": "turn.paused",
    "yielded": "checkpoint",
    "waiting": "turn.waiting",
    "uncertain": "turn.waiting",
    "failed": "turn.failed",
    "cancelled": "turn.failed",
}

Params = dict[str, JsonValue]


def turn_output(
    run_id: str, result: SegmentResult, starting_transcript: Sequence[Entry]
) -> tuple[str, Params]:
    """The request that reports a result: its method and its params.

    Transcript entries stand in the params as `RawJson`, so that their texts go out as they are kept.
    """
    method = _METHODS[result.status]
    params: Params = {"runId": run_id, "status": result.status}
    if method == "turn.waiting":
        params["effectIds"] = list(result.effect_ids)
        return method, params
    if result.state is not None:
        params["state"] = {**result.state, "transcript": []}
        params["transcript"] = transcript_edits(starting_transcript, result.transcript or ())
    for name, value in (("output", result.output), ("pending", result.pending), ("error", result.error)):
        if value is not ABSENT:
            params[name] = value
    if result.cancel_effect_ids:
        params["cancelEffectIds"] = list(result.cancel_effect_ids)
    return method, params


def thrown_output(run_id: str, code: str | None, message: str) -> tuple[str, Params]:
    """The request that reports a run which could not be carried through."""
    thrown: dict[str, JsonValue] = {"message": message}
    if code is not None:
        thrown["code"] = code
    return "turn.failed", {"runId": run_id, "thrown": thrown}


def transcript_edits(before: Sequence[Entry], after: Sequence[Entry]) -> list[JsonValue]:
    """The edits from one transcript to another as they stand in a frame (harness-api 5.8)."""
    return [
        {"keep": edit.keep, "entries": [RawJson(entry.text) for entry in edit.entries], "length": edit.length}
        for edit in updates(before, after)
    ]
