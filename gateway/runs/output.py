"""How the end of a segment is reported to core (harness-api 5.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.engine.contract import ABSENT, SegmentResult
from protocol.jsjson import JsonValue
from protocol.transcript import Entry, Update, updates

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
    run_id: str,
    result: SegmentResult,
    starting_transcript: Sequence[Entry],
    edits: Sequence[Update] | None = None,
) -> tuple[str, Params]:
    """The request that reports a result: its method and its params.

    Transcript entries stand in the params as `RawJson`, so that their texts go out as they are kept.
    `edits` are those from the starting transcript to the result's, when the caller has them already.
    """
    method = _METHODS[result.status]
    params: Params = {"runId": run_id, "status": result.status}
    if method == "turn.waiting":
        params["effectIds"] = list(result.effect_ids)
        return method, params
    if result.state is not None:
        params["state"] = {**result.state, "transcript": []}
        if edits is None:
            edits = updates(starting_transcript, result.transcript or ())
        params["transcript"] = [edit.document() for edit in edits]
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
