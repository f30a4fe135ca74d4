from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import EngineRefused
from tests.engine.support import Player, agent, call, calls, checkpoint, following, json_of, start, tool

TWO = agent(tool("a"), tool("b"))
FIRST = "T1:0:tool:invocation_T1_0_2"
SECOND = "T1:0:tool:invocation_T1_0_3"


def asks(kind: str, **members: Any) -> Any:
    return {"kind": "interaction-required", "interaction": {"kind": kind, "prompt": "?"}, **members}


def both_ask(kind: str = "approval") -> Player:
    player = start(TWO).model(calls(call("c1", "a"), call("c2", "b")))
    player.complete(SECOND, asks(kind, token=2))
    return player.complete(FIRST, asks(kind, token=1))


def approve(number: int, approved: bool = True) -> dict[str, Any]:
    interaction_id = f"T1:0:interaction:invocation_T1_0_{number}"
    return {"kind": "approve", "interactionId": interaction_id, "approved": approved}


def refused(player: Player) -> str | None:
    with pytest.raises(EngineRefused) as error:
        player.start()
    assert not player.asked
    return error.value.code


@pytest.mark.spec("agent-engine:23.19")
def test_an_approval_does_not_answer_a_question() -> None:
    paused = start(TWO).model(calls(call("c1", "a"))).tool(asks("response"))
    assert refused(following(paused, TWO, approve(2))) == "execution.invalid-input"
    answer = {"kind": "respond", "interactionId": approve(2)["interactionId"], "value": [1]}
    resumed = following(paused, TWO, answer).start()
    (effect,) = resumed.in_flight.values()
    context: Any = effect.document["context"]
    assert context["resume"] == {
        "kind": "response",
        "interactionId": answer["interactionId"],
        "value": [1],
    }
    question = start(TWO).model(calls(call("c1", "a"))).tool(asks("approval"))
    assert refused(following(question, TWO, answer)) == "execution.invalid-input"


@pytest.mark.parametrize(
    "input_",
    [
        {"kind": "approve", "interactionId": "other", "approved": True},
        {"kind": "respond", "interactionId": "other", "value": 1},
        {"kind": "settle", "invocationId": "invocation_T1_0_2", "outcome": {"kind": "denied", "reason": "r"}},
        {"kind": "continue"},
        {"text": "hello"},
    ],
)
def test_what_answers_nothing_open_is_refused(input_: Any) -> None:
    assert refused(following(both_ask(), TWO, input_)) == "execution.invalid-input"


@pytest.mark.spec("agent-engine:23.20")
def test_two_interactions_are_answered_one_after_the_other() -> None:
    paused = both_ask()
    assert [pending["callId"] for pending in json_of(paused.result.pending)] == ["c1", "c2"]
    second = following(paused, TWO, approve(3)).start()
    assert list(second.in_flight) == ["T1:1:tool:invocation_T1_0_3"]
    second.tool("two")
    assert second.result.status == "paused"
    assert [pending["callId"] for pending in json_of(second.result.pending)] == ["c1"]
    third = following(second, TWO, approve(2), segment=2).start()
    assert list(third.in_flight) == ["T1:2:tool:invocation_T1_0_2"]
    third.tool("one").model("ok")
    assert [result["output"] for result in third.results()] == ["one", "two"]
    kinds = [entry["kind"] for entry in third.entries]
    assert kinds == ["input", "candidate", "input", "input", "tool-results", "candidate", "final"]


def test_a_phase_counts_only_for_a_call_that_asks() -> None:
    state = both_ask().state
    state["plan"]["calls"][0] |= {"status": "deferred", "interactionPhase": "before"}
    given = checkpoint(TWO, approve(3), segment=1, state=state)
    player = Player(TWO, given).start()
    assert list(player.in_flight) == ["T1:1:tool:invocation_T1_0_3"]


@pytest.mark.spec("agent-engine:23.22")
def test_a_rejected_approval_is_a_denial_without_an_effect() -> None:
    paused = start(TWO).model(calls(call("c1", "a"))).tool(asks("approval", token={"k": 1}))
    player = following(paused, TWO, approve(2, approved=False)).start()
    assert [effect.effect_id for effect in player.in_flight.values()] == ["T1:1:model:invocation_T1_1_1"]
    player.model("ok")
    assert player.results() == [
        {"callId": "c1", "toolName": "a", "kind": "denied", "reason": "Approval rejected"}
    ]


def test_a_question_answered_twice_brings_the_newest_token_along() -> None:
    paused = start(TWO).model(calls(call("c1", "a"))).tool(asks("approval", token=1))
    again = following(paused, TWO, approve(2)).start()
    context: Any = again.in_flight[again.only("tool")].document["context"]
    assert context["resume"] == {**approve(2), "kind": "approval", "token": 1}
    again.tool(asks("response", token=2))
    saved = again.state["plan"]["calls"][0]
    assert (saved["status"], saved["token"], saved["resume"]["approved"]) == ("interaction", 2, True)
    assert saved["interaction"]["id"] == "T1:1:interaction:invocation_T1_0_2"
    answer = {"kind": "respond", "interactionId": saved["interaction"]["id"], "value": None}
    third = following(again, TWO, answer, segment=2).start()
    context = third.in_flight[third.only("tool")].document["context"]
    assert context["resume"] == {
        "kind": "response",
        "interactionId": saved["interaction"]["id"],
        "value": None,
        "token": 2,
    }


def test_a_settlement_gives_a_deferred_call_its_result_without_running_it() -> None:
    paused = start(TWO).model(calls(call("c1", "a"))).tool({"kind": "deferred", "token": {"job": 1}})
    assert json_of(paused.result.pending)[0]["token"] == {"job": 1}
    outcome = {"kind": "failed", "code": "job.lost", "message": "gone"}
    settle = {"kind": "settle", "invocationId": "invocation_T1_0_2", "outcome": outcome}
    player = following(paused, TWO, settle).start()
    assert [effect.kind for effect in player.in_flight.values()] == ["model"]
    player.model("ok")
    assert player.results() == [{"callId": "c1", "toolName": "a", **outcome}]
    other = {**settle, "invocationId": "invocation_T1_0_9"}
    assert refused(following(paused, TWO, other)) == "execution.invalid-input"


@pytest.mark.parametrize(
    "interaction",
    [None, [], {"kind": "quiz", "prompt": "?"}, {"kind": "approval"}, {"kind": "approval", "prompt": 1}],
)
def test_an_interaction_of_another_shape_is_an_invalid_result(interaction: Any) -> None:
    value = {"kind": "interaction-required", "interaction": interaction}
    player = start(TWO).model(calls(call("c1", "a"))).tool(value).model("ok")
    assert player.results()[0]["message"] == "Tool returned an invalid interaction"


def test_an_interaction_with_extra_members_makes_the_saved_state_invalid() -> None:
    value = {
        "kind": "interaction-required",
        "interaction": {"kind": "approval", "prompt": "?", "id": "mine", "icon": "x"},
    }
    paused = start(TWO).model(calls(call("c1", "a"))).tool(value)
    assert paused.state["plan"]["calls"][0]["interaction"]["id"] == approve(2)["interactionId"]
    assert refused(following(paused, TWO, approve(2))) == "execution.invalid-state"


def test_metadata_of_an_interaction_is_kept() -> None:
    value = asks("approval")
    value["interaction"]["metadata"] = [1, {"a": None}]
    paused = start(TWO).model(calls(call("c1", "a"))).tool(value)
    assert paused.state["plan"]["calls"][0]["interaction"]["metadata"] == [1, {"a": None}]
    assert following(paused, TWO, approve(2)).start().in_flight


def test_a_wait_in_a_saved_call_is_kept() -> None:
    paused = both_ask()
    state = paused.state
    state["plan"]["calls"][0]["wait"] = {"kind": "sleep", "waitId": "w", "name": "n"}
    from tests.engine.support import checkpoint

    given = checkpoint(TWO, approve(3), segment=1, state=state)
    player = Player(TWO, given).start().tool("two")
    assert player.state["plan"]["calls"][0]["wait"] == {"kind": "sleep", "waitId": "w", "name": "n"}
