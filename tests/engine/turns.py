"""Playing a whole turn with all its segments, one way or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.engine.agent.state_check import check_state
from gateway.engine.contract import Completed, EffectRequest, RecordedOutcome, YieldAfter
from gateway.engine.definitions import DefinitionCache
from protocol import jsjson
from protocol.transcript import Entry, entries_of, fold, updates
from tests.engine.scripts import Script
from tests.engine.support import Player, checkpoint, json_of

MOST_SEGMENTS = 40
SHARED = DefinitionCache(max_bytes=1_000_000)
"""Definitions that all turns share, few enough that some are dropped again and again."""


@dataclass(frozen=True)
class Way:
    """How a turn is played.

    `order` chooses among the effects in flight. `journal`: every segment stops after so many answers, with
    all other effects pending, and is run again from what is recorded. `prefix`: every segment is run again
    once it has ended, from its first so many outcomes, the others arriving the other way round. `plain`:
    outcomes are said to be plain where they are.
    """

    order: int = 0
    journal: int | None = None
    prefix: int | None = None
    plain: bool = False


PLAINLY = Way()


@dataclass
class Turn:
    """What was asked, by segment, and how each segment ended."""

    asked: list[list[tuple[str, str]]] = field(default_factory=list)
    ends: list[tuple[str, Any, Any]] = field(default_factory=list)
    effects: list[EffectRequest] = field(default_factory=list, compare=False)

    @property
    def state(self) -> Any:
        """The state of the last segment."""
        return self.ends[-1][1]


def play_turn(script: Script, way: Way = PLAINLY, *, check: Callable[[Player], None] | None = None) -> Turn:
    """Plays one turn to its end. `check` sees every segment that ended."""
    turn = Turn()
    state: Any = None
    entries: list[Entry] = []
    input_: Any = "go"
    for segment in range(MOST_SEGMENTS):
        given = checkpoint(script.manifest, input_, segment=segment)
        if state is not None:
            given["state"] = state
        player = play_segment(script, way, given, entries)
        if check is not None:
            check(player)
        turn.asked.append(sorted((effect.effect_id, effect.request_hash) for effect, _ in player.observed))
        turn.effects += [effect for effect, _ in player.observed]
        result = player.result
        turn.ends.append((result.status, player.state, json_of([str(result.output), str(result.error)])))
        if result.status == "paused":
            input_ = reply(json_of(result.pending)[0])
        elif result.status == "yielded":
            input_ = {"kind": "continue"}
        else:
            return turn
        state, entries = player.state, list(result.transcript or ())
    raise AssertionError("the turn never ends")


def reply(pending: Any) -> Any:
    """The input that answers or settles a pending call."""
    if pending["status"] == "deferred":
        outcome = {"kind": "completed", "output": {"late": True}}
        return {"kind": "settle", "invocationId": pending["invocationId"], "outcome": outcome}
    interaction = pending["interaction"]
    if interaction["kind"] == "approval":
        approved = pending["callId"] != "y"
        return {"kind": "approve", "interactionId": interaction["id"], "approved": approved}
    return {"kind": "respond", "interactionId": interaction["id"], "value": {"b": 1, "a": 2}}


def play_segment(script: Script, way: Way, given: Any, entries: list[Entry]) -> Player:
    """Plays one segment to an end that isn't waiting."""
    recorded: list[RecordedOutcome] = []
    if way.prefix is not None:
        run_segment(script, Way(order=way.order), given, entries, recorded, None)
        del recorded[way.prefix :]
        way = Way(order=way.order + 1)
    while True:
        player = run_segment(script, way, given, entries, recorded, way.journal)
        if player.result.status != "waiting":
            return player


def run_segment(
    script: Script,
    way: Way,
    given: Any,
    entries: list[Entry],
    recorded: list[RecordedOutcome],
    left: int | None,
) -> Player:
    """Runs a segment once; after `left` answers everything else is pending. New outcomes are recorded."""
    player = Player(
        script.manifest,
        given,
        outcomes=list(recorded),
        transcript=entries if way.journal is None else [Entry(entry.text) for entry in entries],
        yield_after=YieldAfter(steps=script.limit),
        definitions=SHARED,
    ).start()
    while player.in_flight:
        effect_id = sorted(player.in_flight)[way.order % len(player.in_flight)]
        if left == 0:
            player.pending(effect_id)
            continue
        effect = player.in_flight[effect_id]
        parsed = jsjson.parse(jsjson.dumps(script.answer(effect)))
        outcome: Any = parsed.value
        player.answer(effect_id, Completed(outcome, way.plain and parsed.plain))
        recorded.append(RecordedOutcome(effect_id, effect.request_hash, outcome))
        left = None if left is None else left - 1
    return player


def check_end(player: Player) -> None:
    """The reported edits lead from the starting transcript to the state's, which can be started from."""
    after = list(player.result.transcript or ())
    folded = list(player.transcript)
    for edit in updates(player.transcript, after, 200):
        folded = fold(folded, edit)
    assert folded == after
    state = player.state
    entries = entries_of(state["transcript"])
    assert entries == after
    check_state({**state, "transcript": []}, entries)
