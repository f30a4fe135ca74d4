"""The bytes of a model call's request are those of the message, whatever its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whippletree.v1 import common_pb2, model_executor_pb2

from gateway.executors.written_call import WrittenCall


def request() -> model_executor_pb2.ModelCallRequest:
    effect = common_pb2.EffectRef(tenant_id="t", session_id="s", effect_id="e", epoch=7)
    return model_executor_pb2.ModelCallRequest(effect=effect, invocation_id="inv", fixture=True)


def read(parts: list[bytes]) -> model_executor_pb2.ModelCallRequest:
    return model_executor_pb2.ModelCallRequest.FromString(WrittenCall(request(), parts).SerializeToString())


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(str.encode), max_size=8))
def test_pieces_arrive_as_one_text_beside_the_other_members(parts: list[bytes]) -> None:
    expected = request()
    expected.call.text = b"".join(parts).decode()
    assert read(parts) == expected


def test_lengths_on_both_sides_of_each_varint_byte_are_read_back() -> None:
    for size in (0, 1, 124, 125, 126, 127, 128, 16_379, 16_380, 16_383, 16_384, 2_097_151, 2_097_152):
        assert len(read([b"x" * size]).call.text) == size


def test_a_cancel_finds_the_effect() -> None:
    assert WrittenCall(request(), [b"{}"]).effect == request().effect
