"""Plays the host of an engine from recorded answers, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Answer,
    Completed,
    EffectRequest,
    EngineRefused,
    HostError,
    Pending,
    RecordedOutcome,
    SegmentInput,
    SegmentResult,
    Step,
    Uncertain,
    YieldAfter,
)
from gateway.engine.factory import make_engine
from protocol import jsjson
from protocol.transcript import Entry, entries_of

ABORT_MESSAGES = {
    "cancel": "Turn cancelled",
    "shutdown": "The harness is stopping",
    "deadline": "The advance ran past its deadline",
    "ownership.lost": "Ownership lost",
}


@dataclass(slots=True)
class Played:
    """What an engine asked for and how its segment ended."""

    asked: list[tuple[EffectRequest, bool]] = field(default_factory=list)
    result: SegmentResult | None = None
    refused: EngineRefused | None = None
    transcript: Sequence[Entry] = ()


def whole_effect(effect: EffectRequest) -> dict[str, Any]:
    """The effect with a model call's prompt, as it is hashed."""
    document = jsjson.loads(jsjson.dumps(dict(effect.document)))
    assert isinstance(document, dict)
    if effect.model_call is not None:
        document["input"] = jsjson.loads(effect.model_call.text())
    return document


def abort_of(recorded: Mapping[str, Any]) -> Abort:
    """The abort of a recorded {reason, message?}."""
    reason = recorded["reason"]
    return Abort(AbortKind(reason), recorded.get("message", ABORT_MESSAGES[reason]))


def segment_input(
    manifest: Any, given: Mapping[str, Any], observe: Any = None, *, plain: bool = False
) -> SegmentInput:
    """A step's input as an engine takes it: the transcript apart from the state."""
    checkpoint = dict(given["checkpoint"])
    transcript: list[Entry] = []
    state = checkpoint.get("state")
    if isinstance(state, dict) and isinstance(state.get("transcript"), list):
        transcript = entries_of(state["transcript"])
        checkpoint["state"] = {**state, "transcript": []}
    limits = given.get("yieldAfter")
    return SegmentInput(
        manifest=manifest,
        checkpoint=checkpoint,
        transcript=transcript,
        session_tools=given.get("sessionTools", ()),
        outcomes={
            outcome["effectId"]: RecordedOutcome(
                outcome["effectId"], outcome["requestHash"], outcome["outcome"], plain
            )
            for outcome in given.get("outcomes", ())
        },
        yield_after=None if limits is None else YieldAfter(limits.get("steps"), limits.get("ms")),
        flow_limits=given.get("limits"),
        observe=observe,
    )


def play(
    kind: Literal["agent", "flow"],
    manifest: Any,
    given: Mapping[str, Any],
    answers: Mapping[str, Any],
) -> Played:
    """Runs one step to its end."""
    played = Played()

    def observe(effect: EffectRequest, known: bool) -> None:
        played.asked.append((effect, known))
        recorded = answers.get(effect.effect_id, {})
        if not known and "abort" in recorded and "delayMs" not in recorded:
            # It comes while the effect is asked for, so before whatever is asked for next.
            engine.abort(abort_of(recorded["abort"]))

    segment = segment_input(manifest, given, observe)
    played.transcript = segment.transcript
    engine = make_engine(kind, segment)
    if "abortBefore" in given:
        engine.abort(abort_of(given["abortBefore"]))
    now = 0.0
    try:
        step = engine.start(now)
    except EngineRefused as refused:
        played.refused = refused
        return played
    due: list[tuple[float, int, str]] = []
    asked = 0

    def enqueue(taken: Step) -> None:
        nonlocal asked
        for effect in taken.effects:
            asked += 1
            delay = answers.get(effect.effect_id, {}).get("delayMs", 0)
            heapq.heappush(due, (now + delay, asked, effect.effect_id))

    enqueue(step)
    while step.result is None:
        now, _, effect_id = heapq.heappop(due)
        recorded = answers.get(effect_id, {"status": "pending"})
        if "abort" in recorded:
            engine.abort(abort_of(recorded["abort"]))
        step = engine.resolve(effect_id, answer_of(recorded), now)
        enqueue(step)
    assert not due, "the segment ended with effects in flight"
    played.result = step.result
    return played


def answer_of(recorded: Mapping[str, Any]) -> Answer:
    """A recorded answer as engines take it."""
    if "abort" in recorded:
        return AbortedEffect(abort_of(recorded["abort"]))
    if "error" in recorded:
        return HostError(recorded["error"].get("code"), recorded["error"]["message"])
    status = recorded["status"]
    if status == "completed":
        return Completed(recorded["outcome"])
    return Pending() if status == "pending" else Uncertain()
