"""An engine driven by hand: it asks, the benchmark answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.engine.contract import (
    Completed,
    EffectRequest,
    RecordedOutcome,
    SegmentInput,
    SegmentResult,
    Step,
)
from gateway.engine.definitions import DefinitionCache
from gateway.engine.factory import make_engine
from protocol.canonical import manifest_hash
from protocol.transcript import Entry

SESSION: Final = "ses_bench"
MANIFEST: Final[dict[str, Any]] = {
    "manifestSchemaVersion": 4,
    "id": "bench",
    "capabilities": [
        {
            "id": "desk",
            "type": "agent",
            "instructions": ["You look things up."],
            "tools": [
                {
                    "name": "look_up",
                    "description": "Looks something up.",
                    "inputSchema": {
                        "type": "object",
                        "properties": {"key": {"type": "string"}},
                        "required": ["key"],
                        "additionalProperties": False,
                    },
                }
            ],
        }
    ],
}
HASH: Final = manifest_hash(MANIFEST)


def checkpoint(turn_id: str, input_: Any, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The checkpoint of a turn's first segment; `state` is that of the turn before."""
    document = {
        "version": 1,
        "engineVersion": "hosted-3",
        "manifestHash": HASH,
        "sessionId": SESSION,
        "turnId": turn_id,
        "segment": 0,
        "input": input_,
    }
    return document if state is None else {**document, "state": {**state, "transcript": []}}


def asks(*call_ids: str, filler: str = "") -> dict[str, Any]:
    """A candidate that calls the tool once per id; the filler goes into its arguments."""
    blocks = [
        {"type": "tool-call", "id": call_id, "name": "look_up", "args": {"key": f"{call_id}{filler}"}}
        for call_id in call_ids
    ]
    return {"output": blocks, "finishReason": "tool-calls"}


class Player:
    """One segment and what it waits for."""

    def __init__(
        self,
        checkpoint_: Mapping[str, Any],
        transcript: Sequence[Entry] = (),
        *,
        definitions: DefinitionCache | None = None,
        outcomes: Mapping[str, RecordedOutcome] | None = None,
    ) -> None:
        segment = SegmentInput(
            manifest=MANIFEST, checkpoint=checkpoint_, transcript=transcript, outcomes=outcomes or {}
        )
        self._engine = make_engine("agent", segment, definitions)
        self.waiting: dict[str, EffectRequest] = {}
        self.ended: SegmentResult | None = None

    def start(self) -> None:
        """Runs to the first effects. Raises EngineRefused."""
        self._take(self._engine.start(0.0))

    def answer(self, effect_id: str, value: Any) -> None:
        """Answers an effect."""
        del self.waiting[effect_id]
        self._take(self._engine.resolve(effect_id, Completed({"value": value}, plain=True), 0.0))

    def _take(self, step: Step) -> None:
        self.waiting |= {effect.effect_id: effect for effect in step.effects}
        self.ended = step.result
