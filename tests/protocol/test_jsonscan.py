"""The scans find strings and nesting wherever they are."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given

from protocol.jsonscan import blank_strings, depth_of
from tests.protocol.json_values import values


def levels_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(levels_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(levels_of, value.values()), default=0)
    return 0


@given(values)
def test_depth_is_exact_in_any_text(value: Any) -> None:
    for escaped in (True, False):
        text = json.dumps(value, ensure_ascii=escaped)
        assert depth_of(text.encode("utf-8", "surrogatepass")) == levels_of(value)


def test_brackets_in_strings_do_not_count() -> None:
    assert depth_of(b"[[],[],[]]") == 2
    assert depth_of(b'["[[[[[["]') == 1
    assert depth_of(rb'["\"[[", {"[\\": "{{\\\""}]') == 2


@given(values)
def test_blanking_strings_keeps_every_other_character_in_its_place(value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    expected = re.sub(rb'"((?:[^"\\]|\\.)*)"', lambda string: b'"' + b"_" * len(string[1]) + b'"', data)
    assert blank_strings(data) == expected
