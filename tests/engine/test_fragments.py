from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.fragments import Spliced, around_member, canonical_object, fragment, quote
from protocol.canonical import canonical_request


def test_a_value_in_canonical_order_is_held_once() -> None:
    both = fragment({"a": 1, "b": [1.5, "é"]})
    assert both.wire is both.canonical
    assert both.canonical == '{"a":1,"b":[1.5,"é"]}'.encode()


def test_another_order_is_sent_and_not_hashed() -> None:
    both = fragment({"b": 1, "a": 2})
    assert (both.canonical, both.wire) == (b'{"a":2,"b":1}', b'{"b":1,"a":2}')


def test_a_string_is_quoted_as_javascript_does() -> None:
    assert quote('a"\n\x01/\u2028') == b'"a\\"\\n\\u0001/\xe2\x80\xa8"'
    assert quote("\ud83d!") == b'"\\ud83d!"'


def test_an_object_is_put_together_in_canonical_order() -> None:
    members: dict[str, Any] = {"kind": "tool", "agentId": "a", "input": {"z": 1}, "context": []}
    texts = {name: canonical_request(value) for name, value in members.items()}
    assert canonical_object(texts) == canonical_request(members)
    head, tail = around_member({name: texts[name] for name in texts if name != "input"}, "input")
    assert head + texts["input"] + tail == canonical_request(members)


@pytest.mark.parametrize("hole", ["a", "m", "z"])
def test_a_hole_may_be_first_last_or_between(hole: str) -> None:
    members = {"b": b"1", "n": b"2"}
    head, tail = around_member(members, hole)
    assert head + b"0" + tail == canonical_request({"b": 1, "n": 2, hole: 0})


def test_spliced_pieces_stay_as_they_were_when_the_list_grows() -> None:
    grown = [b"1", b"2", b"3"]
    spliced = Spliced((b"<",), grown, (b">",), skip=1)
    grown.append(b"4")
    assert b"".join(spliced) == b"<23>"
    assert (len(spliced), spliced[1], spliced[-1], list(spliced[1:3])) == (4, b"2", b">", [b"2", b"3"])
    assert b"".join(spliced) == b"<23>"
