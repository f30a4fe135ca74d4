"""Runs the engine of this build on a recording and finds the first thing it does otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cli.recordings.difference import Difference, first_difference
from cli.recordings.driven import Asked, DrivenEngine, End, RecordedDefinitions
from gateway.engine.agent.profile import profile_of
from gateway.engine.definitions import DefinitionCache
from gateway.recording.reader import (
    AbortTold,
    Answered,
    Began,
    Moment,
    RecordedEffect,
    RecordedEnd,
    Recording,
)
from protocol.canonical import request_hash

ENGINE_FAULT: Final = "The harness failed to run the segment"
"""What a run reports whose engine failed."""


class NotReplayable(Exception):
    """The recording can't be run by this build; the text says why."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The first thing that is not as recorded: a sentence, and where its documents part."""

    sentence: str
    effect_id: str | None = None
    difference: Difference | None = None


@dataclass(slots=True)
class Replayed:
    """What came of a replay. `same` are the effects that are as recorded, in order."""

    same: list[RecordedEffect] = field(default_factory=list)
    drift: Drift | None = None
    ended: End | None = None
    stopped_at: Asked | None = None


def driven_engine(recording: Recording, definitions: DefinitionCache | None = None) -> DrivenEngine:
    """An engine on the recording's start. Raises NotReplayable."""
    version = recording.checkpoint.get("engineVersion")
    if recording.engine == "agent" and profile_of(version) is None and not _was_refused(recording):
        raise NotReplayable(f"is of engine version {version!r}, which this build does not have")
    if recording.manifest_hash is not None:
        definitions = RecordedDefinitions(recording.manifest_hash)
    return DrivenEngine(recording.engine, recording.segment, definitions)


def replay(
    recording: Recording, definitions: DefinitionCache | None = None, until: str | None = None
) -> tuple[Replayed, DrivenEngine]:
    """Tells the engine what it was told then, and compares what it asks for after each.

    Stops at the first drift, or as soon as the effect `until` is asked for. Raises NotReplayable.
    """
    driven = driven_engine(recording, definitions)
    replayed = Replayed()
    for index, moment in enumerate(recording.moments):
        before = len(driven.asked)
        _tell(driven, moment)
        asked = driven.asked[before:]
        last_of_a_part = index == len(recording.moments) - 1 and recording.end is None
        replayed.drift = _compare(moment.effects, asked, driven.end, replayed.same, open_end=last_of_a_part)
        if replayed.drift is None and driven.end is not None and index < len(recording.moments) - 1:
            told = recording.moments[index + 1].told
            replayed.drift = Drift(
                f"the turn ends here ({driven.end.method}), and went on with {_named(told)}"
            )
        replayed.stopped_at = next((one for one in asked if one.effect_id == until), None)
        if replayed.drift is not None or replayed.stopped_at is not None:
            return replayed, driven
    replayed.ended = driven.end
    replayed.drift = end_drift(recording.end, driven.end)
    return replayed, driven


def effect_drift(recorded: RecordedEffect, asked: Asked) -> Drift | None:
    """How an effect differs from the recorded one; None when it doesn't."""
    # A delegation's context is no part of its identity (harness-api 7).
    ignored = ("context",) if recorded.kind == "delegation" else ()
    document = asked.document()
    if recorded.effect_id != asked.effect_id:
        return Drift(
            f"another effect is asked for: {asked.effect_id} in the place of {recorded.effect_id}",
            asked.effect_id,
            first_difference(recorded.document, document, ("effectId",)),
        )
    difference = first_difference(recorded.document, document, ignored)
    if recorded.request_hash != asked.effect.request_hash:
        if difference is None:
            difference = Difference("requestHash", recorded.request_hash, asked.effect.request_hash)
            sentence = "the same request has another hash"
            if request_hash(recorded.document) != recorded.request_hash:
                sentence += (
                    "; the recorded one does not fit: the recording was changed, or hashed by other rules"
                )
            return Drift(sentence, asked.effect_id, difference)
        return Drift("another request", asked.effect_id, _telling(recorded.document, document, difference))
    if difference is not None:
        sentence = "another request, although the recorded hash fits it: the recording was changed"
        return Drift(sentence, asked.effect_id, difference)
    if recorded.known != asked.known:
        return Drift("the outcomes it came with answer it differently", asked.effect_id)
    return None


def _telling(before: Mapping[str, Any], after: Mapping[str, Any], found: Difference) -> Difference:
    """The difference that tells more: with another manifest every effect has another manifest hash."""
    if found.path != "manifestHash":
        return found
    return first_difference(before, after, ("manifestHash",)) or found


def end_drift(recorded: RecordedEnd | None, end: End | None) -> Drift | None:
    """How the end differs; None when it doesn't, or when the recording has none."""
    if recorded is None:
        return None
    if end is None:
        return Drift(f"the turn goes on here, and ended then ({recorded.method})")
    if end.fault is not None:
        failed_then = recorded.params == {"thrown": {"message": ENGINE_FAULT}}
        return None if failed_then else _fault(end)
    if recorded.method != end.method:
        sentence = f"the turn ends with {end.method}, and ended with {recorded.method}"
        return Drift(sentence, None, first_difference(recorded.params, end.params))
    difference = first_difference(recorded.params, end.params)
    return None if difference is None else Drift("the turn ends otherwise", None, difference)


def instead_of_effect(end: End | None) -> str:
    """What comes where an effect was due."""
    if end is None:
        return "nothing"
    if end.fault is not None:
        return f"a fault of this build's engine ({end.fault})"
    if "thrown" in end.params:
        return f"a refusal ({end.params['thrown']['message']})"
    return f"the end ({end.method})"


def _fault(end: End) -> Drift:
    return Drift(f"the engine of this build fails: {end.fault}")


def _was_refused(recording: Recording) -> bool:
    return recording.end is not None and "thrown" in recording.end.params


def _tell(driven: DrivenEngine, moment: Moment) -> None:
    match moment.told:
        case Began(now_ms=now):
            driven.begin(now)
        case Answered(effect_id=effect_id, answer=answer, now_ms=now):
            if effect_id not in driven.waiting:
                raise NotReplayable(f"answers {effect_id}, for which nothing asks at that point")
            driven.answer(effect_id, answer, now)
        case AbortTold(abort=abort):
            driven.abort(abort)


def _compare(
    recorded: Sequence[RecordedEffect],
    asked: Sequence[Asked],
    end: End | None,
    same: list[RecordedEffect],
    *,
    open_end: bool,
) -> Drift | None:
    """The first drift of one moment; effects that are as recorded are added to `same`."""
    for one, other in zip(recorded, asked, strict=False):
        drift = effect_drift(one, other)
        if drift is not None:
            return drift
        same.append(one)
    if len(recorded) > len(asked):
        missing = recorded[len(asked)]
        return Drift(f"{instead_of_effect(end)} comes in the place of {missing.effect_id}", missing.effect_id)
    if len(asked) > len(recorded) and not open_end:
        more = asked[len(recorded)]
        return Drift(f"{more.effect_id} is asked for in addition", more.effect_id)
    return None


def _named(told: Began | Answered | AbortTold) -> str:
    if isinstance(told, Answered):
        return f"the answer to {told.effect_id}"
    return "an abort" if isinstance(told, AbortTold) else "its start"
