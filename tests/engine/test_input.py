from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import EngineRefused
from tests.engine.support import PLAIN, Player, checkpoint, start


@pytest.mark.spec("agent-engine:23.3")
@pytest.mark.parametrize(
    "input_",
    [
        {"text": "a", "content": []},
        {"kind": "wait-resolve", "waitId": "w"},
        {"content": [{"type": "media", "mediaType": "", "reference": 1}]},
        {"content": [{"type": "media", "mediaType": "image/png"}]},
        {"content": [{"type": "text", "text": "a", "more": 1}]},
        {"content": ["a"]},
        {"content": "a"},
        {"text": 5},
        {"text": "a", "metadata": "m"},
        {"text": "a", "other": 1},
        {"kind": ["user-message"], "text": "a"},
        {"kind": "user-message"},
        {"kind": "continue", "more": 1},
        {"kind": "approve", "interactionId": "i"},
        {"kind": "approve", "interactionId": "", "approved": True},
        {"kind": "respond", "interactionId": "i"},
        {"kind": "settle", "invocationId": "i", "outcome": {"kind": "later"}},
        {},
        [],
        None,
        7,
        True,
    ],
)
def test_an_input_of_another_shape_is_refused(input_: Any) -> None:
    player = Player(PLAIN, checkpoint(PLAIN, input_))
    with pytest.raises(EngineRefused) as refused:
        player.start()
    assert refused.value.code == "execution.invalid-input"
    assert not player.observed


def test_a_checkpoint_without_an_input_is_refused() -> None:
    given = checkpoint(PLAIN)
    del given["input"]
    with pytest.raises(EngineRefused) as refused:
        Player(PLAIN, given).start()
    assert refused.value.code == "execution.invalid-input"


@pytest.mark.parametrize(
    "input_",
    [
        {"kind": "approve", "interactionId": "i", "approved": True},
        {"kind": "respond", "interactionId": "i", "value": None},
        {"kind": "settle", "invocationId": "i", "outcome": {"kind": "denied", "reason": "no"}},
    ],
)
def test_an_answer_without_a_pause_is_refused(input_: Any) -> None:
    with pytest.raises(EngineRefused) as refused:
        start(PLAIN, input_)
    assert refused.value.code == "execution.invalid-input"


@pytest.mark.parametrize(
    ("input_", "event"),
    [
        ("hi", {"kind": "user-message", "text": "hi"}),
        ("", {"kind": "user-message", "text": ""}),
        ({"text": "hi", "metadata": {"a": 1}}, {"kind": "user-message", "text": "hi", "metadata": {"a": 1}}),
        ({"content": []}, {"kind": "user-message", "content": []}),
        ({"kind": "interrupt", "text": "stop"}, {"kind": "interrupt", "text": "stop"}),
    ],
)
def test_a_message_becomes_the_turns_first_entry(input_: Any, event: Any) -> None:
    player = start(PLAIN, input_).model("ok")
    assert player.entries[0] == {"kind": "input", "turnId": "turn_T1_0_1", "event": event}


def test_parts_reach_the_model_and_metadata_does_not() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "media", "mediaType": "image/png", "reference": {"z": 1, "a": [None]}},
    ]
    player = start(PLAIN, {"content": parts, "metadata": {"from": "phone"}})
    assert player.prompt()[-1] == {"kind": "message", "role": "user", "content": parts}
    sent = player.in_flight[player.only("model")].model_call
    assert sent is not None
    assert b'"reference":{"z":1,"a":[null]}' in sent.text()


def test_continuing_without_a_turn_starts_one_without_a_message() -> None:
    player = start(PLAIN, {"kind": "continue"})
    assert [item["kind"] for item in player.prompt()] == ["instructions"]
    player.model("ok")
    assert [entry["kind"] for entry in player.entries] == ["candidate", "final"]
    assert player.state["turnCount"] == 1
