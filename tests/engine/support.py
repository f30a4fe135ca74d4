"""Running an engine by hand: a player that asks, answers and looks."""

from __future__ import annotations

import json
from pathlib import Path
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
    Step,
    Uncertain,
    YieldAfter,
)
from gateway.engine.definitions import DefinitionCache
from gateway.engine.factory import make_engine
from gateway.engine.segment import Segment
from protocol import jsjson
from protocol.canonical import manifest_hash
from protocol.transcript import Entry, entries_of

_DATA = json.loads((Path(__file__).parent / "data" / "traces.json").read_text("utf-8"))
PLAIN: dict[str, Any] = _DATA["P"]
HELPER: dict[str, Any] = _DATA["M"]
BOSS: dict[str, Any] = _DATA["D"]
HOOKED: dict[str, Any] = _DATA["E"]
TRACES: list[dict[str, Any]] = _DATA["traces"]

CANCEL = Abort(AbortKind.CANCEL, "Turn cancelled")


def agent(*tools: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A manifest with one capability that has the tools."""
    capability: dict[str, Any] = {"id": "desk", "type": "agent"}
    if tools:
        capability["tools"] = list(tools)
    return {"manifestSchemaVersion": 4, "id": "clerk", "capabilities": [capability], **members}


def tool(name: str, **members: Any) -> dict[str, Any]:
    """A tool that takes any object."""
    return {"name": name, "inputSchema": {"type": "object"}, **members}


DELEGATE_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "minLength": 1,
            "description": "A complete, self-contained task. The agent sees nothing else.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


def delegate(child: dict[str, Any]) -> dict[str, Any]:
    """A tool that is an agent or a flow."""
    return {
        "name": child["id"],
        "description": child["description"],
        "inputSchema": DELEGATE_SCHEMA,
        "agent": child,
    }


def capability(id_: str, *tools: dict[str, Any], hooks: str = "", **members: Any) -> dict[str, Any]:
    """A capability; `hooks` names its points, as in "before-turn after-step", in the manifest's order."""
    document: dict[str, Any] = {"id": id_, "type": "agent", **members}
    if tools:
        document["tools"] = list(tools)
    if hooks:
        document["hooks"] = [
            {"at": at, "scope": scope} for at, scope in (point.split("-") for point in hooks.split())
        ]
    return document


def agent_of(*capabilities: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A manifest of these capabilities."""
    return {"manifestSchemaVersion": 4, "id": "clerk", "capabilities": list(capabilities), **members}


def call(call_id: str, name: str, /, **args: Any) -> dict[str, Any]:
    """A tool-call block."""
    return {"type": "tool-call", "id": call_id, "name": name, "args": args}


def calls(*blocks: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A candidate of these blocks."""
    return {"output": list(blocks), **members}


def text(value: str, **members: Any) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": value, **members}


def checkpoint(
    manifest: Any, input_: Any = "go", *, turn: str = "T1", segment: int = 0, **members: Any
) -> Any:
    """A checkpoint of session S1."""
    return {
        "version": 1,
        "engineVersion": "hosted-3",
        "manifestHash": manifest_hash(manifest),
        "sessionId": "S1",
        "turnId": turn,
        "segment": segment,
        "input": input_,
        **members,
    }


class Player:
    """An engine and everything that passed between it and the host."""

    def __init__(
        self,
        manifest: dict[str, Any],
        checkpoint_: dict[str, Any],
        *,
        session_tools: list[Any] | None = None,
        outcomes: list[RecordedOutcome] | None = None,
        yield_after: YieldAfter | None = None,
        transcript: list[Entry] | None = None,
        definitions: DefinitionCache | None = None,
    ) -> None:
        self.observed: list[tuple[EffectRequest, bool]] = []
        state = checkpoint_.get("state")
        if transcript is None:
            transcript = entries_of(state["transcript"]) if isinstance(state, dict) else []
        if isinstance(state, dict):
            checkpoint_ = {**checkpoint_, "state": {**state, "transcript": []}}
        self.transcript = transcript
        self.engine: Segment = make_engine(
            "agent",
            SegmentInput(
                manifest=manifest,
                checkpoint=checkpoint_,
                transcript=transcript,
                session_tools=session_tools or [],
                outcomes={outcome.effect_id: outcome for outcome in outcomes or []},
                yield_after=yield_after,
                observe=lambda effect, known: self.observed.append((effect, known)),
            ),
            definitions,
        )
        self.in_flight: dict[str, EffectRequest] = {}
        self.asked: dict[str, EffectRequest] = {}
        self.ended: SegmentResult | None = None
        self.now = 0.0

    def start(self) -> Player:
        """Starts the segment; raises EngineRefused."""
        self._take(self.engine.start(self.now))
        return self

    def _take(self, step: Step) -> None:
        for effect in step.effects:
            assert effect.effect_id not in self.asked, "an effect id was used twice"
            self.in_flight[effect.effect_id] = self.asked[effect.effect_id] = effect
        if step.result is not None:
            assert not self.in_flight, "a segment ended with effects in flight"
            self.ended = step.result

    def answer(self, effect_id: str, answer: Answer) -> Player:
        """Answers an effect in flight."""
        del self.in_flight[effect_id]
        self._take(self.engine.resolve(effect_id, answer, self.now))
        return self

    def complete(self, effect_id: str, value: Any, patch: Any = None, *, plain: bool = False) -> Player:
        """Answers with an outcome."""
        outcome = {"value": value} if patch is None else {"value": value, "statePatch": patch}
        return self.answer(effect_id, Completed(outcome, plain))

    def model(self, value: Any, *, plain: bool = False) -> Player:
        """Answers the one model call in flight."""
        return self.complete(self.only("model"), value, plain=plain)

    def tool(self, value: Any, patch: Any = None) -> Player:
        """Answers the one tool call in flight."""
        return self.complete(self.only("tool"), value, patch)

    def hook(self, results: Any = None, /, **by_capability: Any) -> Player:
        """Answers the one hook in flight."""
        given = by_capability if results is None else results
        return self.complete(self.only("hook"), {"results": given})

    def document(self, effect_id: str | None = None) -> Any:
        """An effect as it was sent; without an id the one in flight."""
        if effect_id is None:
            (effect_id,) = self.in_flight
        return json_of(dict(self.asked[effect_id].document))

    @property
    def hashes(self) -> dict[str, str]:
        """What was asked, by effect id."""
        return {effect.effect_id: effect.request_hash for effect, _ in self.observed}

    def pending(self, effect_id: str) -> Player:
        """The effect's outcome comes later."""
        return self.answer(effect_id, Pending())

    def uncertain(self, effect_id: str) -> Player:
        """Nobody knows the effect's outcome."""
        return self.answer(effect_id, Uncertain())

    def fail(self, effect_id: str, code: str, message: str) -> Player:
        """The host fails."""
        return self.answer(effect_id, HostError(code, message))

    def abort(self, *, stopping: bool = True, reason: Abort = CANCEL) -> Player:
        """Aborts the run; with `stopping` every effect in flight fails with it."""
        self._take(self.engine.abort(reason))
        while stopping and self.in_flight:
            self.answer(next(iter(self.in_flight)), AbortedEffect(reason))
        return self

    def only(self, kind: str) -> str:
        """The id of the one effect in flight, which is of that kind."""
        (effect,) = self.in_flight.values()
        assert effect.kind == kind
        return effect.effect_id

    # Looking

    @property
    def result(self) -> SegmentResult:
        """How the segment ended."""
        assert self.ended is not None, f"still waits for {list(self.in_flight)}"
        return self.ended

    @property
    def state(self) -> dict[str, Any]:
        """The state it ended with, transcript included."""
        assert self.result.state is not None
        entries = [entry.value() for entry in self.result.transcript or ()]
        return {**json_of(self.result.state), "transcript": entries}

    @property
    def entries(self) -> list[Any]:
        """The transcript it ended with."""
        return list(self.state["transcript"])

    @property
    def error(self) -> Any:
        """The error of a failed segment."""
        assert self.result.status == "failed"
        return self.result.error

    def results(self) -> list[Any]:
        """The results of the newest plan that was written down."""
        return next(entry["results"] for entry in reversed(self.entries) if entry["kind"] == "tool-results")

    def prompt(self, effect_id: str | None = None) -> list[Any]:
        """The prompt of a model call; without an id the one in flight."""
        effect = self.asked[effect_id or self.only("model")]
        assert effect.model_call is not None
        document: Any = jsjson.loads(effect.model_call.text())
        return list(document["prompt"])


def json_of(value: Any) -> Any:
    """A value as it reads after it was sent."""
    return jsjson.loads(jsjson.dumps(value))


def start(manifest: dict[str, Any], input_: Any = "go", **options: Any) -> Player:
    """A started first turn."""
    return Player(manifest, checkpoint(manifest, input_), **options).start()


def following(player: Player, manifest: dict[str, Any], input_: Any, **options: Any) -> Player:
    """A started segment after a player's: the next segment of a turn that goes on, or else a new turn."""
    goes_on = player.result.status in ("paused", "yielded")
    segment = options.pop("segment", 1 if goes_on else 0)
    turn = options.pop("turn", "T1" if goes_on else "T2")
    state = player.state
    entries = list(player.result.transcript or ())
    given = checkpoint(manifest, input_, turn=turn, segment=segment, state=state)
    return Player(manifest, given, transcript=entries, **options)
