"""The scans find strings and nesting wherever they are."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import jsonscan
from protocol.jsonscan import blank_strings, depth_of, nested_spans
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


def spans_by_hand(text: str) -> list[tuple[int, int]]:
    spans, depth = [], 0
    for at, character in enumerate(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(character, 0)
        if character in "[{" and depth == 2:
            spans.append((at, len(text)))
        elif character in "]}" and depth == 1:
            spans[-1] = (spans[-1][0], at + 1)
    return spans


@given(st.recursive(st.just(""), lambda inner: st.lists(inner, max_size=4).map("".join).map("[{}],".format)))
def test_spans_are_the_containers_inside_the_outermost_wherever_blocks_end(text: str) -> None:
    text = f"[{text}]"
    for cut in (len(text), len(text) * 2 // 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jsonscan, "_BLOCK", 3)
            assert list(nested_spans(text[:cut].encode())) == spans_by_hand(text[:cut])


def test_text_that_closes_more_than_it_opens_has_no_spans_behind() -> None:
    assert list(nested_spans(b"[" + b"]" * 9000 + b"[[]]" * 9000)) == []


@pytest.mark.parametrize("text", [b"[" * 2_000_000, b"[[" + b"[]," * 500_000 + b"0]]"], ids=["deep", "wide"])
def test_finding_spans_costs_little_more_than_finding_the_depth(text: bytes) -> None:
    costs = []
    for scan in (depth_of, lambda data: list(nested_spans(data))):
        started = time.process_time()
        scan(text)
        costs.append(time.process_time() - started)
    # Bracket by bracket it was thirty times as much for what nests deep.
    assert costs[1] < 10 * max(costs[0], 0.02)
