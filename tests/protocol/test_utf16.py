"""Lengths and slices in UTF-16 code units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.utf16 import (
    join_surrogates,
    utf16_length,
    utf16_slice,
    utf16_sort_key,
    utf16_truncate,
)
from tests.protocol.json_values import strings


def units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("", 0),
        ("abc", 3),
        ("é", 1),
        ("😀", 2),
        ("a😀b", 4),
        ("\ud83d", 1),
        ("\ud83d\ude00", 2),
        ("\uffff", 1),
    ],
)
def test_a_character_outside_the_basic_plane_counts_two(text: str, length: int) -> None:
    assert utf16_length(text) == length


@given(strings, st.integers(-8, 14), st.none() | st.integers(-8, 14))
def test_slices_take_the_code_units_that_javascript_takes(text: str, start: int, end: int | None) -> None:
    assert units(utf16_slice(text, start, end)) == units(text)[start:end]
    assert utf16_length(text) == len(units(text))


@given(strings, st.integers(-2, 14))
def test_truncating_is_the_slice_from_the_start(text: str, length: int) -> None:
    assert units(utf16_truncate(text, length)) == units(text)[: max(length, 0)]


def test_a_cut_through_a_pair_leaves_a_lone_half() -> None:
    assert utf16_slice("a😀b", 0, 2) == "a\ud83d"
    assert utf16_slice("a😀b", 2) == "\ude00b"
    assert utf16_truncate("😀😀", 3) == "😀\ud83d"


def test_halves_that_meet_are_joined_and_others_kept() -> None:
    assert join_surrogates("a\ud83d" + "\ude00b\ude00") == "a😀b\ude00"
    assert join_surrogates("plain é😀") == "plain é😀"


def test_order_is_by_code_unit_not_by_code_point() -> None:
    assert sorted(["\uffff", "😀", "\ue000", "z"], key=utf16_sort_key) == ["z", "😀", "\ue000", "\uffff"]


def test_ten_megabytes_are_measured_and_cut() -> None:
    text = "😀x" * 3_000_000
    assert utf16_length(text) == 9_000_000
    assert utf16_truncate(text, 1) == "\ud83d"
