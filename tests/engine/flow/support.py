"""Plays a flow engine's host from a table of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Answer,
    Completed,
    EffectRequest,
    HostError,
    Pending,
    RecordedOutcome,
    SegmentInput,
    SegmentResult,
    Uncertain,
)
from gateway.engine.factory import make_engine
from protocol import jsjson
from protocol.canonical import manifest_hash

PREFIX = "T1:0:flow:"
FN = {"fn": True}
CANCEL = Abort(AbortKind.CANCEL, "Turn cancelled")
PENDING, UNCERTAIN = Pending(), Uncertain()
Choose = Callable[[Sequence[EffectRequest]], int]


def agent(name: str, /, **members: Any) -> dict[str, Any]:
    """An agent manifest."""
    return {"manifestSchemaVersion": 4, "id": name, "capabilities": [], **members}


def flow(root: Any, *agents: str | dict[str, Any], name: str = "top") -> dict[str, Any]:
    """A workflow of version 2; agents are names or whole documents."""
    embedded = [agent(one) if isinstance(one, str) else one for one in agents]
    return {
        "kind": "workflow",
        "workflowSchemaVersion": 2,
        "id": name,
        "root": root,
        "agents": {one["id"]: one for one in embedded},
    }


def flow1(root: Any) -> dict[str, Any]:
    """A workflow of version 1."""
    return {"kind": "workflow", "workflowSchemaVersion": 1, "id": "top", "root": root}


def checkpoint(manifest: Any, given: Any = "go", **changes: Any) -> dict[str, Any]:
    """The manifest's checkpoint in turn T1 of session S1."""
    return {
        "version": 1,
        "engineVersion": f"flow-{manifest['workflowSchemaVersion']}",
        "manifestHash": manifest_hash(manifest),
        "sessionId": "S1",
        "turnId": "T1",
        "segment": 0,
        "input": given,
        **changes,
    }


def marker(output: Any, ran: Any) -> dict[str, Any]:
    """What core records of a linked turn."""
    return {"__nylorunAgentTurn": 1, "output": output, "agent": ran}


def failed(code: str, message: str | None = None, **members: Any) -> dict[str, Any]:
    """A failed value."""
    return {"kind": "failed", "code": code, **({} if message is None else {"message": message}), **members}


def host_error(message: str = "drift", code: str = "effect_drift") -> HostError:
    return HostError(code, message)


def aborted() -> AbortedEffect:
    return AbortedEffect(CANCEL)


@dataclass
class Played:
    """What was asked for, in order, and how the segment ended. Ids are without the turn's prefix."""

    effects: list[EffectRequest] = field(default_factory=list)
    known: list[bool] = field(default_factory=list)
    result: SegmentResult = field(default_factory=lambda: SegmentResult("failed"))

    @property
    def asked(self) -> list[str]:
        return [effect.effect_id.removeprefix(PREFIX) for effect in self.effects]

    @property
    def new(self) -> list[str]:
        """Those that no recorded outcome answered."""
        return [name for name, known in zip(self.asked, self.known, strict=True) if not known]

    @property
    def hashes(self) -> set[tuple[str, str]]:
        return {(effect.effect_id, effect.request_hash) for effect in self.effects}

    def document(self, name: str, nth: int = 0) -> Any:
        """The effect of that id as it is sent."""
        found = [effect for effect in self.effects if effect.effect_id == PREFIX + name]
        return jsjson.loads(jsjson.dumps(dict(found[nth].document), plain=found[nth].plain))

    def input(self, name: str) -> Any:
        return self.document(name)["input"]

    def context(self, name: str) -> Any:
        return self.document(name)["context"]

    @property
    def output(self) -> Any:
        assert self.result.status == "completed", self.result
        return self.result.output

    @property
    def error(self) -> Any:
        assert self.result.status == "failed", self.result
        return self.result.error

    @property
    def code_and_path(self) -> tuple[str, str]:
        return self.error["code"], self.error["path"]

    @property
    def waits_for(self) -> set[str]:
        assert self.result.status in ("waiting", "uncertain"), self.result
        return {name.removeprefix(PREFIX) for name in self.result.effect_ids}

    @property
    def cancels(self) -> set[str]:
        return {name.removeprefix(PREFIX) for name in self.result.cancel_effect_ids}


def run(
    manifest: Any,
    given: Any = "go",
    answers: Mapping[str, Any] | Callable[[EffectRequest], Any] | None = None,
    *,
    check: dict[str, Any] | None = None,
    outcomes: Sequence[RecordedOutcome] = (),
    limits: Any = None,
    abort_first: bool = False,
    abort_at: str | None = None,
    choose: Choose = lambda _: 0,
    plain: bool = False,
) -> Played:
    """Runs a segment to its end.

    `answers` gives, by id without prefix or by function, an `Answer` or the value of an outcome; what it has
    nothing for is pending. Effects in flight are answered in the order of their asks, or as `choose` says.
    With `abort_at` the run is aborted while that effect is in flight.
    """
    played = Played()

    def observe(effect: EffectRequest, known: bool) -> None:
        played.effects.append(effect)
        played.known.append(known)

    engine = make_engine(
        "flow",
        SegmentInput(
            manifest=manifest,
            checkpoint=check if check is not None else checkpoint(manifest, given),
            outcomes={one.effect_id: one for one in outcomes},
            flow_limits=limits,
            plain=plain,
            observe=observe,
        ),
    )
    if abort_first:
        engine.abort(CANCEL)
    step = engine.start(0)
    in_flight = list(step.effects)
    while step.result is None:
        effect_id = in_flight[choose(in_flight)].effect_id
        # The answers of one id come in the order of its asks.
        effect = next(one for one in in_flight if one.effect_id == effect_id)
        in_flight = [one for one in in_flight if one is not effect]
        name = effect.effect_id.removeprefix(PREFIX)
        if name == abort_at:
            engine.abort(CANCEL)
            answer: Answer = aborted()
        else:
            answer = _answer(effect, name, answers, plain)
        step = engine.resolve(effect.effect_id, answer, 0)
        in_flight += step.effects
    assert not in_flight, "the segment ended with effects in flight"
    played.result = step.result
    return played


def _answer(effect: EffectRequest, name: str, answers: Any, plain: bool) -> Answer:
    if answers is None:
        return PENDING
    found = answers(effect) if callable(answers) else answers.get(name, PENDING)
    if isinstance(found, Completed | Pending | Uncertain | HostError | AbortedEffect):
        return found
    return Completed({"value": found}, plain)


def record(played: Played, values: Mapping[str, Any]) -> list[RecordedOutcome]:
    """Outcomes for what was asked, as core records them."""
    return [
        RecordedOutcome(effect.effect_id, effect.request_hash, {"value": values[name]})
        for effect, name in zip(played.effects, played.asked, strict=True)
        if name in values
    ]
