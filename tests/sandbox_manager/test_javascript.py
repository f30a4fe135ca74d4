import math
from typing import Any

import pytest

from services.sandbox_manager.javascript import given, text_of, to_number, to_slice_index, to_string, trim


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (None, "null"),
        (True, "true"),
        (1, "1"),
        (0.5, "0.5"),
        (1e21, "1e+21"),
        ([1, None, "a"], "1,,a"),
        ({}, "[object Object]"),
    ],
)
def test_strings_are_those_of_javascript(value: Any, text: str) -> None:
    assert to_string(value) == text


def test_a_missing_member_reads_undefined() -> None:
    assert text_of({}, "path") == "undefined"
    assert text_of({"path": None}, "path") == "null"
    assert not given({"path": None}, "path")
    assert given({"path": 0}, "path")


@pytest.mark.parametrize(
    ("value", "number"),
    [(" 12 ", 12), ("", 0), ("0x10", 16), ("1e3", 1000), (True, 1), (None, 0), ([5], 5), ("-.5", -0.5)],
)
def test_numbers_are_those_of_javascript(value: Any, number: float) -> None:
    assert to_number(value) == number


@pytest.mark.parametrize("value", ["abc", "1_0", "٣", {}, [1, 2], "1n"])
def test_what_is_no_number_is_nan(value: Any) -> None:
    assert math.isnan(to_number(value))


@pytest.mark.parametrize(
    ("number", "index"), [(math.nan, 0), (-1, 4), (-9, 0), (2.9, 2), (9, 5), (math.inf, 5), (-math.inf, 0)]
)
def test_slice_positions_are_those_of_javascript(number: float, index: int) -> None:
    assert to_slice_index(number, 5) == index


def test_trimming_takes_what_javascript_takes_for_white_space() -> None:
    assert trim("\ufeff\u3000 \n x y \t\u2029") == "x y"
    assert trim("\x1cx\x85") == "\x1cx\x85"
