"""Frames: what is one, what can be answered, and what nests too deep."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import frames
from protocol.frames import (
    AbortFrame,
    Answer,
    FrameInvalid,
    Message,
    Ping,
    Refusal,
    Request,
    TooDeep,
    decode_frame,
)
from protocol.jsjson import JsonError, loads
from tests.protocol.json_values import nested, values


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ('{"t":"req","id":1,"m":"hello","p":{}}', Request(1, "hello", {}, True)),
        ('{"p":null,"m":"x","id":1.0,"t":"req"}', Request(1, "x", None, True)),
        ('{"t":"req","id":9007199254740991,"m":"x","p":0.5}', Request(2**53 - 1, "x", 0.5, False)),
        ('{"t":"res","id":2,"ok":true,"r":[1]}', Answer(2, [1], True)),
        (
            '{"t":"res","id":2,"ok":false,"e":{"code":"internal","message":""}}',
            Refusal(2, "internal", ""),
        ),
        ('{"t":"msg","m":"cancel","p":{"é":1}}', Message("cancel", {"é": 1}, False)),
        ('{"t":"abort","id":3}', AbortFrame(3)),
        (' {"t":"ping"} ', Ping()),
    ],
)
def test_each_kind_of_frame_is_read(text: str, frame: frames.Frame) -> None:
    assert decode_frame(text) == frame
    assert decode_frame(text.encode()) == frame


@pytest.mark.parametrize(
    ("text", "answerable"),
    [
        ('{"t":"req","id":3,"m":"workspace.report"}', 3),
        ('{"t":"req","id":3,"m":"","p":{}}', 3),
        ('{"t":"req","id":3,"m":7,"p":{}}', 3),
        ('{"t":"req","id":0,"m":"x","p":{}}', 0),
        ('{"t":"req","id":-4,"m":"x","p":{}}', -4),
        ('{"t":"req","id":1.5,"m":"x","p":{}}', 1.5),
        ('{"t":"req","id":9007199254740992,"m":"x","p":{}}', 2**53),
        ('{"t":"req","id":3,"m":"x","p":{},"extra":1}', 3),
        ('{"t":"req","id":3}', 3),
        ('{"t":"req","id":true,"m":"x","p":{}}', None),
        ('{"t":"req","id":"3","m":"x","p":{}}', None),
        ('{"t":"req","id":null,"m":"x","p":{}}', None),
        ('{"t":"req","m":"x","p":{}}', None),
        ('{"t":"res","id":3,"ok":true}', None),
        ('{"t":"res","id":3,"ok":1,"r":{}}', None),
        ('{"t":"res","id":3,"ok":false,"e":{"code":"odd","message":""}}', None),
        ('{"t":"res","id":3,"ok":false,"e":{"code":"internal","message":null}}', None),
        ('{"t":"res","id":3,"ok":false,"e":{"code":["internal"],"message":""}}', None),
        ('{"t":"res","id":3,"ok":false,"e":[]}', None),
        ('{"t":"res","id":0,"ok":true,"r":1}', None),
        ('{"t":"abort","id":0}', None),
        ('{"t":"abort","id":1,"p":1}', None),
        ('{"t":"msg","m":"","p":1}', None),
        ('{"t":"msg","id":3,"m":"x","p":1}', None),
        ('{"t":"ping","id":3}', None),
        ('{"t":["req"],"id":3}', None),
        ('{"id":3,"m":"x","p":1}', None),
        ("null", None),
        ("7", None),
        ('"ping"', None),
        ("[]", None),
        ("{}", None),
    ],
)
def test_a_broken_request_with_a_number_can_be_answered_and_nothing_else_can(
    text: str, answerable: float | None
) -> None:
    with pytest.raises(FrameInvalid) as caught:
        decode_frame(text)
    assert caught.value.id == answerable
    assert caught.value.reason


@pytest.mark.parametrize("text", ["{", "", "\ufeff{}", '{"t":"ping"}}', "NaN", b"\xff\xfe"])
def test_what_is_not_json_is_another_fault(text: str | bytes) -> None:
    with pytest.raises(JsonError):
        decode_frame(text)


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ('{"t":"req","id":7,"m":"x","p":%s}', TooDeep("req", 7)),
        ('{"p":%s,"m":"x","id":7,"t":"req"}', TooDeep("req", 7)),
        ('{"t":"req","id":7,"m":"x","p":{"t":"res","id":8,"q":%s}}', TooDeep("req", 7)),
        ('{"t":"res","id":3,"ok":true,"r":%s}', TooDeep("res", 3)),
        ('{"t":"msg","m":"x","p":%s}', TooDeep("msg", None)),
        ('{"t":"msg","m":"x","p":["}]\\"]",%s,"[{"]}', TooDeep("msg", None)),
    ],
)
@pytest.mark.parametrize("levels", [900, 1_000, 100_000])
def test_a_frame_that_nests_too_deep_still_says_whose_it_is(text: str, frame: TooDeep, levels: int) -> None:
    assert decode_frame(text % nested(levels)) == frame


def test_nine_hundred_levels_in_all_are_read() -> None:
    frame = decode_frame(f'{{"t":"req","id":7,"m":"x","p":{nested(899)}}}')
    assert isinstance(frame, Request)
    assert not frame.plain


@pytest.mark.parametrize(
    ("text", "answerable"),
    [
        ('{"t":"req","id":0,"m":"x","p":%s}', 0),
        ('{"t":"req","id":%s,"m":"x","p":1}', None),
        ('{"t":"abort","id":1,"x":%s}', None),
        ('{"t":"res","id":1,"ok":false,"e":%s}', None),
        ("%s", None),
    ],
)
def test_a_deep_value_that_is_no_frame_is_an_invalid_frame(text: str, answerable: int | None) -> None:
    with pytest.raises(FrameInvalid) as caught:
        decode_frame(text % nested(2_000))
    assert caught.value.id == answerable


@pytest.mark.parametrize(
    "text", ['{"t":"req","id":1,"p":' + "[" * 2_000, "[" * 1_000_000, "[" * 950 + "]" * 949]
)
def test_a_deep_text_that_breaks_off_is_not_json(text: str) -> None:
    with pytest.raises(JsonError):
        decode_frame(text)


ids = st.integers(1, 2**53 - 1)


@given(ids, st.text(min_size=1, max_size=8), values)
def test_written_frames_read_back_as_themselves(frame_id: int, method: str, value: Any) -> None:
    held = loads(frames.jsjson.dumps(value))
    request = decode_frame(frames.encode_request(frame_id, method, value))
    assert isinstance(request, Request)
    assert (request.id, request.m, request.p) == (frame_id, method, held)
    answer = decode_frame(frames.encode_answer(frame_id, value))
    assert isinstance(answer, Answer)
    assert (answer.id, answer.r) == (frame_id, held)
    message = decode_frame(frames.encode_message(method, value))
    assert isinstance(message, Message)
    assert (message.m, message.p) == (method, held)
    assert decode_frame(frames.encode_abort(frame_id)) == AbortFrame(frame_id)
    refusal = decode_frame(frames.encode_refusal(frame_id, "invalid", method))
    assert refusal == Refusal(frame_id, "invalid", method)


def test_a_refusal_answers_any_number_that_a_request_came_with() -> None:
    assert frames.encode_refusal(1.5, "invalid", "m").startswith('{"t":"res","id":1.5,"ok":false,')


mutations = st.dictionaries(st.sampled_from(["t", "id", "m", "p", "ok", "r", "e", "x"]), values, max_size=5)


@given(mutations, st.sampled_from(["req", "res", "msg", "abort", "ping"]))
def test_any_json_value_is_a_frame_or_invalid(value: dict[str, Any], kind: str) -> None:
    for candidate in (value, {**value, "t": kind}, [value]):
        fault = None
        try:
            frames.frame_of(candidate)
        except FrameInvalid as error:
            fault = error
        if fault and fault.id is not None:
            assert isinstance(candidate, dict)
            assert candidate["t"] == "req"
