"""Replays segments that are written down as cases: a manifest, and steps of input, answers and expectation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cli.recordings.difference import first_difference
from cli.recordings.driven import Asked, DrivenEngine, Observe
from cli.recordings.replaying import Drift, instead_of_effect
from cli.recordings.scripted import Script, ScriptedAnswer, play
from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Answer,
    HostError,
    Pending,
    RecordedOutcome,
    SegmentInput,
    YieldAfter,
)
from gateway.recording.format import FormatError, read_answer
from protocol.transcript import entries_of


def replay_case(record: Mapping[str, Any]) -> tuple[int, Drift | None]:
    """How many effects are as written down, and the first drift of all steps.

    Raises FormatError, KeyError or TypeError for a case of another shape.
    """
    same = 0
    for step in record["steps"]:
        found, drift = _step(record, step)
        same += found
        if drift is not None:
            title = step.get("title")
            where = f"{title}: " if isinstance(title, str) else ""
            return same, Drift(where + drift.sentence, drift.effect_id, drift.difference)
    return same, None


def _step(record: Mapping[str, Any], step: Mapping[str, Any]) -> tuple[int, Drift | None]:
    manifest = step["input"].get("manifest", record["manifest"])
    kind: Literal["agent", "flow"] = "flow" if manifest.get("kind") == "workflow" else "agent"
    driven = DrivenEngine(kind, lambda observe: _segment(manifest, step["input"], observe))
    script = Script({name: _answer(answer) for name, answer in step.get("answers", {}).items()})
    if "abortBefore" in step["input"]:
        script.aborts.append((-1.0, _abort(step["input"]["abortBefore"])))
    _answer_the_rest(driven, script)
    expected = {effect["effectId"]: effect for effect in step["expect"].get("effects", ())}
    for asked in driven.asked:
        drift = _effect_drift(expected, asked)
        if drift is not None:
            return len(driven.asked), drift
    missing = [name for name in expected if name not in {asked.effect_id for asked in driven.asked}]
    if missing:
        return len(driven.asked), Drift(
            f"{instead_of_effect(driven.end)} comes in the place of {missing[0]}", missing[0]
        )
    return len(driven.asked), _end_drift(step["expect"], driven)


def _answer_the_rest(driven: DrivenEngine, script: Script) -> None:
    """Plays on, with an effect that no answer is written for pending."""

    def seen(asked: Asked) -> None:
        script.answers.setdefault(asked.effect_id, ScriptedAnswer(Pending()))

    play(driven, script, seen=seen)


def _segment(manifest: Any, given: Mapping[str, Any], observe: Observe) -> SegmentInput:
    checkpoint = dict(given["checkpoint"])
    state, transcript = checkpoint.get("state"), []
    if isinstance(state, dict) and isinstance(state.get("transcript"), list):
        transcript = entries_of(state["transcript"])
        checkpoint["state"] = {**state, "transcript": []}
    limits = given.get("yieldAfter")
    outcomes = [
        RecordedOutcome(known["effectId"], known["requestHash"], known["outcome"])
        for known in given.get("outcomes", ())
    ]
    return SegmentInput(
        manifest=manifest,
        checkpoint=checkpoint,
        transcript=transcript,
        session_tools=given.get("sessionTools", ()),
        outcomes={known.effect_id: known for known in outcomes},
        yield_after=None if limits is None else YieldAfter(limits.get("steps"), limits.get("ms")),
        flow_limits=given.get("limits"),
        observe=observe,
    )


def _answer(written: Mapping[str, Any]) -> ScriptedAnswer:
    delay = written.get("delayMs", 0)
    if "abort" in written:
        abort = _abort(written["abort"])
        return ScriptedAnswer(AbortedEffect(abort), delay_ms=delay, abort=abort)
    answer: Answer
    if "error" in written:
        answer = HostError(written["error"].get("code"), written["error"]["message"])
    else:
        answer = read_answer(written)
    return ScriptedAnswer(answer, delay_ms=delay)


def _abort(written: Mapping[str, Any]) -> Abort:
    from gateway.runs.run import DEFAULT_MESSAGES  # a heavy import that hardly any case needs

    if written.get("reason") not in list(AbortKind):
        raise FormatError("an abort without a known reason")
    kind = AbortKind(written["reason"])
    return Abort(kind, written.get("message", DEFAULT_MESSAGES[kind]))


def _effect_drift(expected: Mapping[str, Any], asked: Asked) -> Drift | None:
    wanted = expected.get(asked.effect_id)
    if wanted is None:
        return Drift(f"{asked.effect_id} is asked for in addition", asked.effect_id)
    document = asked.document()
    got = {**document, "requestHash": asked.effect.request_hash}
    shown = {name: value for name, value in wanted.items() if name != "recorded"}
    difference = first_difference(shown, {name: got[name] for name in got if name in shown})
    return None if difference is None else Drift("another request", asked.effect_id, difference)


def _end_drift(expect: Mapping[str, Any], driven: DrivenEngine) -> Drift | None:
    wanted = expect.get("output")
    if driven.end is None or not isinstance(wanted, dict):
        return None if driven.end is not None else Drift("the turn does not end")
    if driven.end.fault is not None:
        return Drift(f"the engine of this build fails: {driven.end.fault}")
    if wanted["method"] != driven.end.method:
        return Drift(f"the turn ends with {driven.end.method}, not {wanted['method']}")
    params = {name: value for name, value in wanted["params"].items() if name != "runId"}
    got = dict(driven.end.params)
    if "thrown" in params and "thrown" in got:
        # Only the code of a refusal is the same everywhere.
        params, got = {"code": params["thrown"].get("code")}, {"code": got["thrown"].get("code")}
    for document in (params, got):
        if "effectIds" in document:
            document["effectIds"] = sorted(document["effectIds"])
    difference = first_difference(params, got)
    return None if difference is None else Drift("the turn ends otherwise", None, difference)
