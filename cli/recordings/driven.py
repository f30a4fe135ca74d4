"""The engine of this build on a recorded start: offline, and told only what the caller tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.engine.contract import (
    Abort,
    Answer,
    EffectRequest,
    EngineRefused,
    SegmentInput,
    SegmentResult,
    Snapshot,
    Step,
)
from gateway.engine.definitions import AgentManifest, DefinitionCache, WorkflowManifest
from gateway.engine.factory import make_engine
from gateway.runs.output import thrown_output, turn_output
from protocol.jsjson import dumps, loads
from services.common.logs import error_text

Observe = Callable[[EffectRequest, bool], None]


class RecordedDefinitions(DefinitionCache):
    """Takes a manifest's recorded hash for it, because its secrets were left out of the recording."""

    def __init__(self, manifest_hash: str) -> None:
        super().__init__()
        self._hash = manifest_hash

    def manifest(self, document: Mapping[str, Any]) -> AgentManifest:
        """As of any cache. Raises EngineRefused."""
        return replace(super().manifest(document), hash=self._hash)

    def workflow(self, document: Mapping[str, Any]) -> WorkflowManifest:
        """As of any cache. Raises EngineRefused."""
        return replace(super().workflow(document), hash=self._hash)


@dataclass(frozen=True, slots=True)
class Asked:
    """An effect that the engine asked for. `known` when an outcome of the start resolved it."""

    effect: EffectRequest
    known: bool

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return self.effect.effect_id

    def document(self) -> dict[str, Any]:
        """The whole effect, a model's input too."""
        document: Any = loads(dumps(dict(self.effect.document)))
        if self.effect.model_call is not None:
            document["input"] = loads(self.effect.model_call.text())
        return dict(document)


@dataclass(frozen=True, slots=True)
class End:
    """How the run would be reported. `fault` is set when the engine itself failed."""

    method: str
    params: Mapping[str, Any]
    result: SegmentResult | None = None
    fault: str | None = None


class DrivenEngine:
    """One segment. `end` is set when it is over; `waiting` has the effects without an answer, with their
    numbers in the order of asking: a flow may ask for one more than once."""

    def __init__(
        self,
        kind: Literal["agent", "flow"],
        segment: Callable[[Observe], SegmentInput],
        definitions: DefinitionCache | None = None,
    ) -> None:
        self.asked: list[Asked] = []
        self.waiting: dict[str, list[int]] = {}
        self.end: End | None = None
        self._number = 0
        self._given = segment(self._observe)
        self._engine = make_engine(kind, self._given, definitions)

    def begin(self, now_ms: float) -> None:
        """Starts the engine."""
        self._take(lambda: self._engine.start(now_ms))

    def answer(self, effect_id: str, answer: Answer, now_ms: float) -> None:
        """Answers the effect, for the ask that has waited longest."""
        numbers = self.waiting[effect_id]
        numbers.pop(0)
        if not numbers:
            del self.waiting[effect_id]
        self._take(lambda: self._engine.resolve(effect_id, answer, now_ms))

    def abort(self, abort: Abort) -> None:
        """Aborts the run."""
        self._take(lambda: self._engine.abort(abort))

    def snapshot(self) -> Snapshot | None:
        """Where the segment stands; None when it was refused or its engine failed."""
        over = self.end is not None and self.end.result is None
        return None if over else self._engine.snapshot()

    def _observe(self, effect: EffectRequest, known: bool) -> None:
        self.asked.append(Asked(effect, known))

    def _take(self, call: Callable[[], Step]) -> None:
        try:
            step = call()
        except EngineRefused as refused:
            self.end = _end_of(thrown_output("", refused.code, refused.message))
            return
        except Exception as error:  # noqa: BLE001  (a fault of the engine is what a debugger shows)
            end = _end_of(thrown_output("", None, "The engine failed"))
            self.end = replace(end, fault=error_text(error))
            return
        for effect in step.effects:
            self._number += 1
            self.waiting.setdefault(effect.effect_id, []).append(self._number)
        if step.result is not None:
            end = _end_of(turn_output("", step.result, self._given.transcript))
            self.end = replace(end, result=step.result)


def _end_of(output: tuple[str, dict[str, Any]]) -> End:
    method, params = output
    document: Any = loads(dumps({name: value for name, value in params.items() if name != "runId"}))
    return End(method, document)
