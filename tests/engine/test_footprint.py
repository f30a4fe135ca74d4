"""How cost and memory grow: with what is new, never with the whole history."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from typing import Any

from gateway.engine.agent import effects
from gateway.engine.contract import Completed
from protocol import jsjson
from protocol.transcript import Entry
from tests.engine.support import Player, agent, call, calls, checkpoint, following, start, tool

MANIFEST = agent(tool("t"))


def history(count: int, size: int) -> list[Entry]:
    """A transcript of messages and answers of so many characters each."""
    entries = []
    for number in range(count // 2):
        turn = f"turn_{number}"
        event = {"kind": "user-message", "text": "x" * size}
        candidate = {"output": [{"type": "text", "text": "y" * size}]}
        entries.append(Entry.from_value({"kind": "input", "turnId": turn, "event": event}, True))
        entries.append(
            Entry.from_value(
                {"kind": "candidate", "turnId": turn, "stepId": "s", "candidate": candidate}, True
            )
        )
    return entries


def completed_state() -> dict[str, Any]:
    return start(MANIFEST).model("ok").state


def test_an_idle_run_of_a_megabyte_stays_below_three() -> None:
    state = completed_state()
    gc.collect()
    tracemalloc.start()
    entries = history(1000, 960)
    size = sum(entry.size for entry in entries)
    given = checkpoint(MANIFEST, turn="T2", state=state)
    player = Player(MANIFEST, given, transcript=entries).start().model(calls(call("c", "t", b=1, a=2)))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert player.in_flight
    assert 1_000_000 < size < 1_100_000
    assert held < 3_000_000


def test_entries_of_an_earlier_segment_are_not_read_again(monkeypatch: Any) -> None:
    first = start(MANIFEST).model(calls(call("c", "t"))).tool("x" * 100).model("ok")
    later = following(first, MANIFEST, "again")

    def read_again(entry: Entry) -> Any:
        raise AssertionError(f"{entry} was read again")

    monkeypatch.setattr(Entry, "value", read_again)
    later.start().model("ok")


def test_a_prompt_is_made_of_pieces_that_later_calls_share() -> None:
    player = start(MANIFEST)
    seen: list[set[int]] = []
    for number in range(4):
        effect = player.in_flight[player.only("model")]
        assert effect.model_call is not None
        seen.append({id(piece) for piece in effect.model_call.parts if len(piece) > 200})
        player.model(calls({"type": "text", "text": "y" * 300}, call(f"c{number}", "t"))).tool("x" * 300)
    for earlier, later in itertools.pairwise(seen):
        assert earlier < later
    assert len(seen[-1]) == 6


def test_a_prompt_stays_what_it_was_while_the_turn_goes_on() -> None:
    player = start(MANIFEST)
    first = player.in_flight[player.only("model")]
    assert first.model_call is not None
    before = first.model_call.text()
    player.model(calls(call("c", "t"))).tool("x").model("ok")
    assert first.model_call.text() == before


def test_each_call_hashes_every_piece_once(monkeypatch: Any) -> None:
    hashed: list[int] = []
    original = effects.hash_pieces

    def counting(pieces: Any) -> str:
        pieces = list(pieces)
        hashed.append(len(pieces))
        return original(pieces)

    monkeypatch.setattr(effects, "hash_pieces", counting)
    player = start(MANIFEST)
    for number in range(5):
        player.model(calls(call(f"c{number}", "t"))).tool("x")
    models = [count for count in hashed if count > 1]
    assert [later - earlier for earlier, later in itertools.pairwise(models)] == [2] * 5


def test_two_hundred_recorded_outcomes_replay_in_one_step() -> None:
    from gateway.engine.contract import RecordedOutcome

    player = start(MANIFEST)
    recorded = []
    for number in range(100):
        for value in (calls(call(f"c{number}", "t")), {"kind": "completed", "output": number}):
            ((effect_id, effect),) = player.in_flight.items()
            recorded.append(RecordedOutcome(effect_id, effect.request_hash, {"value": value}))
            player.answer(effect_id, Completed({"value": value}))
    again = Player(MANIFEST, checkpoint(MANIFEST), outcomes=recorded).start()
    assert len(again.observed) == 201
    assert [known for _, known in again.observed] == [True] * 200 + [False]
    (effect,) = again.in_flight.values()
    assert effect.request_hash == player.in_flight[effect.effect_id].request_hash


def test_a_long_text_and_deep_nesting_are_served() -> None:
    deep: Any = "leaf"
    for _ in range(800):
        deep = [deep]
    player = start(MANIFEST, "x" * 10_000_000).model(calls(call("c", "t", deep=deep))).tool(deep)
    effect = player.in_flight[player.only("model")]
    assert effect.model_call is not None
    assert jsjson.parse(effect.model_call.text(), max_depth=2000)
    player.model("ok")
    assert player.result.status == "completed"
