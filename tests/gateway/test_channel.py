from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.harness_api.channel import Channel, FrameTooLarge
from gateway.harness_api.closing import Close, describe_close
from gateway.harness_api.events import (
    CallFailed,
    CallSucceeded,
    ChannelClosed,
    MessageArrived,
    RequestArrived,
    RequestGivenUp,
)
from protocol import jsjson
from protocol.closing import cut_reason
from protocol.errors import HarnessApiError
from tests.gateway.support import HELLO, lease

CANCEL = {"runId": "r1", "reason": "cancel"}
EXEC = {
    "session": {"ownerId": "s1", "activeTurnId": None},
    "spec": {},
    "tool": "bash",
    "input": {"command": "ls"},
}


def frame(**members: Any) -> str:
    return jsjson.dumps(members)


def answer(call_id: int, result: Any) -> str:
    return frame(t="res", id=call_id, ok=True, r=result)


def refusal(call_id: int, code: str, message: str = "no") -> str:
    return frame(t="res", id=call_id, ok=False, e={"code": code, "message": message})


def sent(channel: Channel) -> list[Any]:
    return [item if isinstance(item, Close) else jsjson.loads(item) for item in channel.frames_to_send()]


def refused_as(channel: Channel) -> list[tuple[int, str]]:
    return [(item["id"], item["e"]["code"]) for item in sent(channel)]


def only_event(channel: Channel) -> Any:
    (event,) = channel.events()
    return event


# Calls


def test_requests_are_numbered_from_one_and_written_in_order():
    channel = Channel()
    assert channel.request("lease", {}) == 1
    assert channel.request("lease.renew", {"runId": "r"}) == 2
    assert sent(channel) == [
        {"t": "req", "id": 1, "m": "lease", "p": {}},
        {"t": "req", "id": 2, "m": "lease.renew", "p": {"runId": "r"}},
    ]
    assert sent(channel) == []


def test_an_answer_becomes_the_checked_struct_of_its_method():
    channel = Channel()
    call_id = channel.request("lease.renew", {"runId": "r"})
    channel.receive_text(answer(call_id, {"ok": True, "token": "x"}))
    event = only_event(channel)
    assert isinstance(event, CallSucceeded)
    assert (event.call_id, event.result.token, event.plain) == (call_id, "x", True)


def test_answers_may_come_in_any_order():
    channel = Channel()
    first, second = channel.request("lease", {}), channel.request("lease.renew", {"runId": "r"})
    channel.receive_text(answer(second, {"ok": True}))
    channel.receive_text(answer(first, lease()))
    assert [event.call_id for event in channel.events()] == [second, first]


def test_a_refusal_keeps_its_code_and_message():
    channel = Channel()
    call_id = channel.request("lease", {})
    channel.receive_text(refusal(call_id, "run_not_held", "gone"))
    event = only_event(channel)
    assert isinstance(event, CallFailed)
    assert (event.error.code, event.error.message) == ("run_not_held", "gone")


def test_a_local_fault_sends_nothing_and_uses_no_number():
    channel = Channel()
    with pytest.raises(HarnessApiError) as refused:
        channel.request("lease", {"slots": 0})
    assert refused.value.code == "invalid"
    with pytest.raises(HarnessApiError):
        channel.request("lease.steal", {})
    assert sent(channel) == []
    assert channel.request("lease", {}) == 1


def test_an_invalid_result_fails_its_own_call_and_the_connection_stays():
    channel = Channel()
    call_id = channel.request("hello", _hello())
    channel.receive_text(answer(call_id, {**HELLO, "api": 2}))
    event = only_event(channel)
    assert event.error.code == "invalid"
    assert event.error.message.startswith("Invalid hello answer: ")
    assert not channel.closed


@pytest.mark.parametrize("method", ["effect.intent", "effect.outcome", "lease.renew"])
def test_a_result_that_is_none_of_several_has_the_peers_own_text(method):
    params = {
        "effect.intent": {"runId": "r", "requestHash": "0" * 64, "effect": _effect()},
        "effect.outcome": {"runId": "r", "effectId": "e", "value": None},
        "lease.renew": {"runId": "r"},
    }[method]
    channel = Channel()
    call_id = channel.request(method, params)
    channel.receive_text(answer(call_id, {"status": "maybe"}))
    assert only_event(channel).error.message == f"Invalid {method} answer: Invalid input"


@pytest.mark.spec("harness-api:10.7")
def test_a_lease_with_an_unknown_routing_member_fails_its_call():
    channel = Channel()
    call_id = channel.request("lease", {})
    channel.receive_text(answer(call_id, lease(routing={"extra": 1})))
    assert only_event(channel).error.code == "invalid"
    assert not channel.closed


def test_a_lease_of_a_newer_core_is_taken():
    newer = lease(routing={"sandbox": {"ownerId": "s1", "environment": {"A": "b"}}})
    del newer["input"]["routing"]["pluginRoots"]
    channel = Channel()
    channel.receive_text(answer(channel.request("lease", {}), newer))
    assert isinstance(only_event(channel), CallSucceeded)


@pytest.mark.spec("harness-api:10.8")
def test_a_run_id_of_512_emoji_is_taken_and_one_of_513_is_not():
    channel = Channel()
    channel.receive_text(answer(channel.request("lease", {}), lease(run_id="\U0001f600" * 512)))
    assert isinstance(only_event(channel), CallSucceeded)
    channel.receive_text(answer(channel.request("lease", {}), lease(run_id="\U0001f600" * 513)))
    assert only_event(channel).error.code == "invalid"


@pytest.mark.spec("harness-api:10.5")
def test_what_belongs_to_nothing_is_ignored():
    channel = Channel()
    channel.receive_text(answer(7, {}))
    channel.receive_text(refusal(7, "internal"))
    channel.receive_text(frame(t="abort", id=9))
    channel.receive_text(frame(t="msg", m="news", p={}))
    channel.receive_text(frame(t="ping"))
    assert channel.events() == []
    assert sent(channel) == []
    assert not channel.closed


def test_giving_up_sends_an_abort_and_a_later_answer_is_ignored():
    channel = Channel()
    call_id = channel.request("lease", {})
    assert channel.abort(call_id)
    channel.receive_text(answer(call_id, lease()))
    assert sent(channel)[1:] == [{"t": "abort", "id": call_id}]
    assert channel.events() == []
    assert not channel.abort(call_id)
    assert sent(channel) == []


# Requests of the peer


def test_a_request_arrives_checked_and_is_answered_once():
    channel = Channel()
    channel.receive_text(frame(t="req", id=3, m="workspace.exec", p=EXEC))
    event = only_event(channel)
    assert isinstance(event, RequestArrived)
    assert (event.request_id, event.params.session.owner_id) == (3, "s1")
    channel.respond(3, {"kind": "completed"})
    channel.respond(3, {"kind": "completed"})
    channel.refuse(3, HarnessApiError("internal", "late"))
    assert sent(channel) == [{"t": "res", "id": 3, "ok": True, "r": {"kind": "completed"}}]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("workspace.exec", {}),
        ("workspace.steal", {}),
        ("workspace.report", None),
        ("workspace.exec", {**EXEC, "extra": 1}),
        ("workspace.remove", {"all": False}),
    ],
)
def test_invalid_params_and_unknown_methods_are_refused_without_an_event(method, params):
    channel = Channel()
    channel.receive_text(frame(t="req", id=4, m=method, p=params))
    assert refused_as(channel) == [(4, "invalid")]
    assert channel.events() == []
    assert not channel.closed


def test_a_method_of_the_other_direction_passes_the_check():
    channel = Channel()
    channel.receive_text(frame(t="req", id=4, m="lease", p={}))
    assert only_event(channel).method == "lease"


def test_our_own_invalid_result_is_answered_invalid():
    channel = Channel()
    channel.receive_text(frame(t="req", id=4, m="workspace.report", p={}))
    channel.respond(4, ["no object"])
    assert refused_as(channel) == [(4, "invalid")]


def test_an_abort_frame_stops_the_work_and_the_answer_may_still_go_out():
    channel = Channel()
    channel.receive_text(frame(t="req", id=4, m="workspace.exec", p=EXEC))
    channel.receive_text(frame(t="abort", id=4))
    _, given_up = channel.events()
    assert isinstance(given_up, RequestGivenUp)
    assert (given_up.request_id, given_up.error.code) == (4, "unavailable")
    channel.respond(4, {"kind": "completed"})
    assert sent(channel)[0]["ok"] is True


# Messages


def test_messages_arrive_checked():
    channel = Channel()
    channel.receive_text(frame(t="msg", m="cancel", p={**CANCEL, "message": "stop"}))
    event = only_event(channel)
    assert isinstance(event, MessageArrived)
    assert (event.method, event.params.message) == ("cancel", "stop")


@pytest.mark.spec("harness-api:10.6")
@pytest.mark.parametrize("params", [{**CANCEL, "extra": 1}, {"runId": "r1"}, {"runId": "r1", "reason": "?"}])
def test_an_invalid_message_is_dropped(params):
    channel = Channel()
    channel.receive_text(frame(t="msg", m="cancel", p=params))
    assert channel.events() == []
    assert not channel.closed


def test_an_outgoing_message_is_checked():
    channel = Channel()
    channel.message("cancel", CANCEL)
    assert sent(channel) == [{"t": "msg", "m": "cancel", "p": CANCEL}]
    with pytest.raises(HarnessApiError):
        channel.message("cancel", {})
    channel.receive_close()
    channel.message("cancel", CANCEL)
    assert sent(channel) == []


# Bad frames


@pytest.mark.spec("harness-api:10.3")
@pytest.mark.parametrize("text", ["{", "", "nul", '\ufeff{"t":"ping"}', '{"t":"ping"} x', '{"a":NaN}'])
def test_text_that_is_not_json_closes_with_1007(text):
    channel = Channel()
    channel.receive_text(text)
    assert sent(channel) == [Close(1007, "Harness API frames are JSON text")]
    assert channel.closed


@pytest.mark.spec("harness-api:10.3")
def test_a_binary_message_closes_with_1007():
    channel = Channel()
    channel.receive_binary()
    assert sent(channel) == [Close(1007, "Harness API frames are JSON text")]


@pytest.mark.spec("harness-api:10.4")
def test_a_request_without_params_is_answered_and_the_connection_stays():
    channel = Channel()
    channel.receive_text('{"t":"req","id":3,"m":"workspace.report"}')
    assert refused_as(channel) == [(3, "invalid")]
    assert not channel.closed


@pytest.mark.parametrize("frame_id", [0, -1, 1.5])
def test_a_request_with_a_bad_number_is_answered_with_that_number(frame_id):
    channel = Channel()
    channel.receive_text(frame(t="req", id=frame_id, m="workspace.report", p={}))
    assert refused_as(channel) == [(frame_id, "invalid")]


@pytest.mark.spec("harness-api:10.4")
@pytest.mark.parametrize(
    "text",
    [
        '{"t":"res","id":3,"ok":true}',
        "null",
        "5",
        '"x"',
        "[]",
        '{"t":"nonsense"}',
        '{"t":"req","id":"3","m":"workspace.report","p":{}}',
        '{"t":"msg","m":"cancel","p":{},"id":1}',
        '{"t":"res","id":3,"ok":false,"e":{"code":"strange","message":""}}',
    ],
)
def test_a_frame_that_cannot_be_answered_closes_with_1000(text):
    channel = Channel()
    channel.receive_text(text)
    (close,) = sent(channel)
    assert close.code == 1000
    assert close.reason.startswith("invalid frame: ")
    assert len(close.reason.encode()) <= 123
    channel.receive_text(frame(t="req", id=1, m="workspace.report", p={}))
    assert channel.frames_to_send() == []


def test_frames_that_nest_too_deep_fail_only_themselves():
    deep = "[" * 1000 + "]" * 1000
    channel = Channel()
    call_id = channel.request("transcript.read", {"runId": "r"})
    channel.frames_to_send()
    channel.receive_text(f'{{"t":"req","id":5,"m":"workspace.exec","p":{deep}}}')
    channel.receive_text(f'{{"t":"msg","m":"cancel","p":{deep}}}')
    channel.receive_text(f'{{"t":"res","id":{call_id},"ok":true,"r":{deep}}}')
    channel.receive_text(f'{{"t":"res","id":99,"ok":true,"r":{deep}}}')
    assert refused_as(channel) == [(5, "invalid")]
    assert only_event(channel).error.code == "invalid"
    assert not channel.closed


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_frame_an_answer_or_a_close_and_never_raises(text):
    channel = Channel()
    channel.request("lease", {})
    channel.receive_text(text)
    assert all(isinstance(item, str | Close) for item in channel.frames_to_send())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["req", "res", "msg", "lease", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["t", "id", "m", "p", "r", "ok", "e"]), inner, max_size=5)
        ),
        max_leaves=12,
    )
)
def test_any_json_value_leaves_the_channel_open_or_closed_with_a_named_reason(value):
    channel = Channel()
    channel.request("lease", {})
    channel.frames_to_send()
    channel.receive_text(jsjson.dumps(value))
    closes = [item for item in channel.frames_to_send() if isinstance(item, Close)]
    assert bool(closes) is channel.closed
    assert all(close.reason.startswith("invalid frame: ") for close in closes)


# Closing


def test_closing_fails_pending_calls_and_gives_up_what_is_served_in_one_event():
    channel = Channel()
    calls = channel.request("lease", {}), channel.request("lease.renew", {"runId": "r"})
    channel.receive_text(frame(t="req", id=8, m="workspace.report", p={}))
    channel.events()
    channel.receive_close()
    event = only_event(channel)
    assert isinstance(event, ChannelClosed)
    assert event.error.code == "unavailable"
    assert (event.failed_calls, event.given_up) == (calls, (8,))
    channel.receive_close()
    assert channel.events() == []


def test_a_closed_channel_refuses_requests_and_drops_answers():
    channel = Channel()
    channel.receive_text(frame(t="req", id=8, m="workspace.report", p={}))
    channel.close(1000, "harness stopped")
    channel.close(1000, "again")
    with pytest.raises(HarnessApiError) as refused:
        channel.request("lease", {})
    assert refused.value.code == "unavailable"
    channel.respond(8, {})
    assert sent(channel) == [Close(1000, "harness stopped")]


def test_a_close_stands_after_what_was_sent_before():
    channel = Channel()
    channel.request("lease", {})
    channel.abort(1)
    channel.close(1000, "harness stopped")
    assert [item if isinstance(item, Close) else item["t"] for item in sent(channel)] == [
        "req",
        "abort",
        Close(1000, "harness stopped"),
    ]


def test_reasons_are_cut_to_what_a_close_frame_can_carry():
    assert cut_reason("x" * 120) == "x" * 120
    assert cut_reason("x" * 130) == "x" * 120
    assert cut_reason("x" * 119 + "é") == "x" * 119 + "\ufffd"
    assert len(cut_reason("é" * 100).encode()) <= 123


def test_a_lost_connection_is_described_by_the_peer_then_by_us():
    assert describe_close(1000, "harness stopped", "") == "harness stopped"
    assert describe_close(1001, "core is stopping", "ours") == "core is stopping (1001)"
    assert describe_close(1006, "", "nothing heard for 90 s") == "nothing heard for 90 s (1006)"
    assert describe_close(1006, "", "") == "(1006)"


# Size


@pytest.mark.spec("harness-api:10.35")
def test_a_frame_of_exactly_the_limit_is_sent_and_a_larger_one_fails_here():
    params = {"runId": "r", "effectId": "e", "value": "é\U0001f600"}
    size = len(jsjson.dumps({"t": "req", "id": 1, "m": "effect.outcome", "p": params}).encode())
    Channel(max_frame_bytes=size).request("effect.outcome", params)
    channel = Channel(max_frame_bytes=size - 1)
    with pytest.raises(FrameTooLarge):
        channel.request("effect.outcome", params)
    assert sent(channel) == []
    assert channel.request("lease", {}) == 1


@pytest.mark.spec("harness-api:10.35")
def test_an_answer_that_is_too_large_is_refused_instead():
    channel = Channel(max_frame_bytes=200)
    channel.receive_text(frame(t="req", id=1, m="workspace.report", p={}))
    channel.respond(1, {"reason": "x" * 300})
    assert refused_as(channel) == [(1, "invalid")]


def _hello() -> dict[str, Any]:
    return {"api": 1, "name": "harness", "version": "0", "capabilities": {}}


def _effect() -> dict[str, Any]:
    return {
        "effectId": "e",
        "sessionId": "s",
        "turnId": "t",
        "agentId": "a",
        "manifestHash": "",
        "kind": "model",
        "context": {},
    }
