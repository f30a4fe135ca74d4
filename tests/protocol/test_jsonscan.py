"""The scans never miss what a text needs."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given

from protocol.jsjson import is_index_key
from protocol.jsonscan import blank_strings, scan
from tests.protocol.json_values import values


def depth_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


def keys_of(value: Any) -> list[str]:
    if isinstance(value, list):
        return [key for item in value for key in keys_of(item)]
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in keys_of(item))]
    return []


@given(values)
def test_depth_index_keys_and_odd_keys_are_found_in_any_text(value: Any) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped)
        facts = scan(text.encode("utf-8", "surrogatepass"), 0)
        assert facts.depth == depth_of(value)
        keys = keys_of(value)
        if any(map(is_index_key, keys)):
            assert facts.index_keys
        if not all(map(str.isascii, keys)):
            assert not facts.plain


@given(values)
def test_blanking_strings_keeps_every_other_character_in_its_place(value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    expected = re.sub(rb'"((?:[^"\\]|\\.)*)"', lambda string: b'"' + b"_" * len(string[1]) + b'"', data)
    assert blank_strings(data) == expected


def test_a_depth_within_the_limit_may_be_guessed_too_high_and_never_too_low() -> None:
    assert scan(b"[[],[],[]]", 10).depth == 4
    assert scan(b"[[],[],[]]", 3).depth == 2
    assert scan(b'["[[[[[["]', 3).depth == 1
