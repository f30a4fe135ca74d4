"""What holds for any agent and any script of answers.

The order of arrival, replay from any prefix of the journal, suspension at every boundary and the fast way
of writing change nothing; ids are used once; patches apply in plan order; edits fold; every state that comes
out can be gone on from; an abort at any point ends the segment.
"""

from __future__ import annotations

import zlib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.engine.contract import AbortedEffect, Completed, EffectRequest, Uncertain
from protocol import jsjson
from protocol.canonical import request_hash
from tests.engine.scripts import SCRIPTS, Script
from tests.engine.support import CANCEL, Player, checkpoint
from tests.engine.turns import Turn, Way, check_end, play_turn
from tests.vectors.segment_host import whole_effect


def examples(count: int) -> settings:
    """So many examples, however busy the machine is."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@examples(450)
@given(SCRIPTS, st.integers(0, 5))
def test_the_order_of_arrival_changes_nothing(script: Script, order: int) -> None:
    turn = play_turn(script, Way(order=order), check=check_end)
    assert turn == play_turn(script)


@examples(350)
@given(SCRIPTS, st.sampled_from([1, 2, 3, 5, 8]), st.integers(0, 2))
def test_suspending_and_resuming_at_every_boundary_changes_nothing(
    script: Script, journal: int, order: int
) -> None:
    assert play_turn(script, Way(order=order, journal=journal)) == play_turn(script)


@examples(450)
@given(SCRIPTS, st.integers(0, 12), st.integers(0, 3))
def test_replaying_any_prefix_of_the_journal_changes_nothing(script: Script, prefix: int, order: int) -> None:
    assert play_turn(script, Way(order=order, prefix=prefix)) == play_turn(script)


@examples(200)
@given(SCRIPTS)
def test_writing_the_fast_way_changes_nothing(script: Script) -> None:
    assert play_turn(script, Way(plain=True)) == play_turn(script)


@examples(300)
@given(SCRIPTS)
def test_ids_are_used_once_hashes_are_of_whole_effects_and_patches_apply_in_order(script: Script) -> None:
    turn = play_turn(script)
    effect_ids = [effect.effect_id for effect in turn.effects]
    assert len(set(effect_ids)) == len(effect_ids)
    for entry in turn.state["transcript"]:
        if entry["kind"] == "tool-results":
            call_ids = [result["callId"] for result in entry["results"]]
            assert len(set(call_ids)) == len(call_ids)
    for effect in turn.effects:
        document = whole_effect(effect)
        assert request_hash(document) == effect.request_hash
    if "configuration.invalid" not in str(turn.ends[-1][2]):
        assert turn.state["state"] == remembered(script, turn)


def remembered(script: Script, turn: Turn) -> dict[str, Any]:
    """The session memory, by what the root's effects were answered in the order they were asked for."""
    bag: dict[str, Any] = {}
    for effect in turn.effects:
        if "agent" in effect.document:
            continue
        if effect.kind == "tool":
            bag |= script.answer(effect).get("statePatch", {})
        elif is_before_hook(effect):
            for result in script.hook_results(effect).values():
                bag |= (result or {}).get("state", {})
    loaded: Any = jsjson.loads(jsjson.dumps(bag))
    return dict(loaded)


def is_before_hook(effect: EffectRequest) -> bool:
    hook: Any = effect.document.get("hook")
    return effect.kind == "hook" and hook["at"] == "before"


@examples(250)
@given(SCRIPTS, st.integers(0, 12), st.integers(0, 3))
def test_an_abort_at_any_point_ends_the_segment(script: Script, after: int, luck: int) -> None:
    player = Player(script.manifest, checkpoint(script.manifest)).start()
    while player.in_flight and after:
        answer_one(player, script)
        after -= 1
    if player.ended is not None:
        return
    asked = set(player.asked)
    player.engine.abort(CANCEL)
    uncertain = False
    while player.in_flight:
        effect_id = min(player.in_flight)
        chance = (zlib.crc32(effect_id.encode()) + luck) % 4
        if chance == 0:
            uncertain = True
            player.answer(effect_id, Uncertain())
        elif chance == 1:
            answer_one(player, script)
        else:
            player.answer(effect_id, AbortedEffect(CANCEL))
    assert set(player.asked) == asked, "something was asked for after the abort"
    if uncertain:
        assert (player.result.status, player.result.state) == ("uncertain", None)
        return
    assert player.result.status in ("cancelled", "completed", "failed")
    assert "plan" not in player.state
    assert "turn" not in player.state
    check_end(player)


def answer_one(player: Player, script: Script) -> None:
    effect = player.in_flight[min(player.in_flight)]
    parsed = jsjson.parse(jsjson.dumps(script.answer(effect)))
    outcome: Any = parsed.value
    player.answer(effect.effect_id, Completed(outcome, parsed.plain))
