from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.agent.prompt_items import instructions_item
from gateway.engine.contract import Completed
from tests.engine.support import BOSS, HELPER, HOOKED, PLAIN, TRACES, Player, following, json_of
from tests.vectors.segment_host import whole_effect

MANIFESTS = {"P": PLAIN, "M": HELPER, "D": BOSS, "E": HOOKED}


def play(trace: dict[str, Any]) -> Player:
    player = Player(MANIFESTS[trace["manifest"]], trace["checkpoint"]).start()
    for known in trace["effects"]:
        player.answer(known["effectId"], Completed(known["outcome"]))
    return player


@pytest.mark.parametrize("trace", TRACES, ids=[trace["name"] for trace in TRACES])
def test_a_worked_trace_asks_and_ends_as_written(trace: dict[str, Any]) -> None:
    player = play(trace)
    asked = list(player.asked.values())
    assert [effect.request_hash for effect in asked] == [known["hash"] for known in trace["effects"]]
    for effect, known in zip(asked, trace["effects"], strict=True):
        assert "effect" not in known or whole_effect(effect) == known["effect"]
    expected = trace["result"]
    assert player.result.status == expected["status"]
    if "state" in expected:
        assert player.state == expected["state"]
    else:
        assert player.state["revision"] == expected["revision"]
        assert player.state["state"] == expected.get("bag", {})
        assert "turn" not in player.state
    if "output" in expected:
        assert player.result.output == expected["output"]
    if "pending" in expected:
        assert json_of(player.result.pending) == expected["pending"]


def test_the_turn_after_a_plain_one_sees_both_messages() -> None:
    player = following(play(TRACES[0]), PLAIN, "again").start()
    (effect,) = player.in_flight.values()
    assert effect.effect_id == "T2:0:model:invocation_T2_0_1"
    assert effect.request_hash == "66dd761298a27941cf83ee804cef11aab7c7594eedc7356ce97d9b2d60dca022"
    assert [item["role"] for item in player.prompt()] == ["system", "user", "assistant", "user"]


def test_a_waiting_segment_asks_the_same_again() -> None:
    trace = TRACES[1]
    first = Player(HELPER, trace["checkpoint"]).start()
    first.answer(trace["effects"][0]["effect"]["effectId"], Completed(trace["effects"][0]["outcome"]))
    slow = "T1:0:tool:invocation_T1_0_3"
    first.pending(slow)
    assert first.ended is None
    first.answer("T1:0:tool:invocation_T1_0_2", Completed(trace["effects"][1]["outcome"]))
    assert (first.result.status, first.result.effect_ids) == ("waiting", (slow,))
    assert first.result.state is None
    again = play(trace)
    hashes = [effect.request_hash for effect in again.asked.values()]
    assert hashes[:3] == [effect.request_hash for effect in first.asked.values()]


def test_info_reaches_every_tool_and_no_model_call() -> None:
    trace = TRACES[1]
    player = Player(HELPER, {**trace["checkpoint"], "info": {"user": "u1"}}).start()
    player.answer(trace["effects"][0]["effect"]["effectId"], Completed(trace["effects"][0]["outcome"]))
    contexts = [effect.document["context"] for effect in player.in_flight.values()]
    assert all(isinstance(context, dict) and context["info"] == {"user": "u1"} for context in contexts)
    model = player.asked["T1:0:model:invocation_T1_0_1"]
    assert model.request_hash == trace["effects"][0]["hash"]


def test_a_rejected_approval_reaches_the_model_as_a_denial() -> None:
    paused = play(TRACES[2])
    answer = {
        "kind": "approve",
        "interactionId": "T1:0:interaction:invocation_T1_0_2",
        "approved": False,
    }
    player = following(paused, HELPER, answer).start()
    assert [effect.kind for effect in player.asked.values()] == ["model"]
    last = player.prompt()[-1]
    assert (last["status"], last["content"][0]["text"]) == (
        "denied",
        '{"kind":"denied","reason":"Approval rejected"}',
    )


def test_instructions_are_the_first_item() -> None:
    assert instructions_item("a\nb").decode() == (
        '{"content":[{"text":"a\\nb","type":"text"}],"kind":"instructions","role":"system"}'
    )
