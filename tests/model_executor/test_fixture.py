"""The fixture route to the letter (model-executor 9)."""

import json

import pytest

from services.model_executor.call_view import view_call
from services.model_executor.fixture import fixture_answer
from tests.model_executor.support import assistant, document, text, tool_result, user

LOOK_UP = {
    "output": [
        {"type": "tool-call", "id": "fixture_lookup", "name": "lookup_order", "args": {"orderId": "demo-123"}}
    ]
}


def said(value):
    return {"output": [{"type": "text", "text": value}]}


def answer(call):
    return json.loads(fixture_answer(view_call(call)))


@pytest.mark.spec("model-executor:15.26")
def test_one_user_message_with_the_tool_gets_the_tool_call():
    assert answer(document(user("hi"), tools=("other", "lookup_order"))) == LOOK_UP


@pytest.mark.spec("model-executor:15.27")
def test_a_tool_result_is_repeated():
    call = document(user("hi"), assistant(), tool_result('{"ok":true}'), tools=("lookup_order",))
    assert answer(call) == said('Order lookup complete: {"ok":true}')


@pytest.mark.spec("model-executor:15.28")
def test_more_than_one_user_message_makes_it_remember_the_first():
    call = document(user("first"), assistant(text("x")), user("second"), tools=("lookup_order",))
    assert answer(call) == said("I remember: first")


@pytest.mark.spec("model-executor:15.29")
def test_without_the_tool_it_greets():
    assert answer(document(user("hi"))) == said("Hello from the fixture model.")
    assert answer(document()) == said("Hello from the fixture model.")


@pytest.mark.spec("model-executor:15.30")
def test_a_context_item_at_the_end_hides_the_tool_result():
    context = {"kind": "context", "role": "user", "content": [text("now")]}
    call = document(user("hi"), assistant(), tool_result("1"), context, tools=("lookup_order",))
    assert answer(call) == LOOK_UP


def test_parts_are_joined_with_a_space_and_others_are_compact_json_in_their_own_order():
    result = tool_result("a")
    result["content"] += [
        {"type": "media", "z": 1, "mediaType": "x", "reference": {"b": 1, "a": 2}},
        text("b"),
    ]
    assert answer(document(user("hi"), result)) == said(
        'Order lookup complete: a {"type":"media","z":1,"mediaType":"x","reference":{"b":1,"a":2}} b'
    )


def test_parts_of_the_remembered_message_that_are_no_text_are_empty():
    first = user("a")
    first["content"] += [{"type": "media"}, text("b")]
    assert answer(document(first, user("x"))) == said("I remember: a  b")


def test_the_bytes_of_the_answer_are_javascript_s():
    assert fixture_answer(view_call(document(user("hi")))) == (
        '{"output":[{"type":"text","text":"Hello from the fixture model."}]}'
    )


def test_a_lone_surrogate_is_read_and_escaped():
    call = document(user("a\ud800"), user("b"))
    assert fixture_answer(view_call(call)).endswith('"I remember: a\\ud800"}]}')
