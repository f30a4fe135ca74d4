"""Writing JSON as `JSON.stringify` does."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.jsjson import RawJson, dumps, dumps_bytes, loads, stringify_number
from tests.protocol.json_values import nested, values


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (-1.25e21, "-1.25e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e16, "10000000000000000"),
        (12345678901234567.0, "12345678901234568"),
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (-1.5e-10, "-1.5e-10"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.1 + 0.2, "0.30000000000000004"),
        (2**53 + 1, "9007199254740992"),
        (12345678901234567890, "12345678901234567000"),
        (10**400, "null"),
        (math.inf, "null"),
        (-math.inf, "null"),
        (math.nan, "null"),
    ],
)
def test_numbers_print_as_ecmascript_prints_them(number: float, text: str) -> None:
    assert stringify_number(number) == text
    assert dumps([number]) == f"[{text}]"


@given(st.integers(0, 2**64 - 1))
def test_every_double_prints_in_digits_that_read_back_the_same(bits: int) -> None:
    (number,) = struct.unpack("<d", struct.pack("<Q", bits))
    text = stringify_number(number)
    if not math.isfinite(number):
        assert text == "null"
        return
    assert float(text) == number
    mantissa, _, exponent = text.partition("e")
    if exponent:
        assert exponent[0] in "+-"
        assert exponent[1] != "0"
        assert not 1e-6 <= abs(number) < 1e21
    else:
        assert number == 0 or 1e-6 <= abs(number) < 1e21
    assert not ("." in mantissa and mantissa[-1] in ".0")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('"\\/', '"\\"\\\\/"'),
        ("\b\f\n\r\t", '"\\b\\f\\n\\r\\t"'),
        ("\x00\x1f\x7f", '"\\u0000\\u001f\x7f"'),
        ("\u2028é😀", '"\u2028é😀"'),
        ("\ud83d", '"\\ud83d"'),
        ("x\udc00y", '"x\\udc00y"'),
        ("\ude00\ud83d", '"\\ude00\\ud83d"'),
        ("\ud83d\ude00", '"😀"'),
        ("<script>&", '"<script>&"'),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_strings_are_escaped_where_json_stringify_escapes(text: str, written: str, plain: bool) -> None:
    assert dumps(text, plain=plain) == written
    assert dumps({text: 1}, plain=plain) == f"{{{written}:1}}"
    assert dumps_bytes([text], plain=plain) == f"[{written}]".encode()


def test_index_keys_of_hand_made_objects_come_first() -> None:
    assert dumps({"b": 1, "10": {"x": 1, "0": 2}, "9": 3}) == '{"9":3,"10":{"0":2,"x":1},"b":1}'


def test_tuples_and_subclasses_are_written_like_what_they_stand_for() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Level(enum.IntEnum):
        ONE = 1

    assert dumps((1, Colour.RED, Level.ONE, True, None)) == '[1,"red",1,true,null]'


@pytest.mark.parametrize("plain", [False, True])
def test_raw_text_is_written_as_it_is(plain: bool) -> None:
    value = {"entries": [RawJson('{"b":1.0,"a":"\\u0041"}'), RawJson("null")], "n": 1}
    assert dumps(value, plain=plain) == '{"entries":[{"b":1.0,"a":"\\u0041"},null],"n":1}'


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, [b"x"], dt.date(2026, 1, 1)])
def test_what_is_no_json_value_raises_a_type_error(value: Any, plain: bool) -> None:
    with pytest.raises(TypeError, match="is not a JSON value"):
        dumps(value, plain=plain)


def test_a_value_wrongly_called_plain_is_still_written_right_where_orjson_notices() -> None:
    assert dumps(["\ud83d"], plain=True) == '["\\ud83d"]'
    assert dumps([2**69], plain=True) == "[590295810358705700000]"
    assert dumps(loads(nested(600)), plain=True) == nested(600)


@given(values)
def test_the_text_is_json_without_spaces_that_reads_back_equal(value: Any) -> None:
    text = dumps(value)
    assert loads(text) == loads(json.dumps(value))
    assert dumps(loads(text)) == text
    assert dumps_bytes(value) == text.encode()


def test_any_depth_is_written_without_recursion() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert dumps(value) == nested(100_001)
    while value:  # taken apart by hand: freeing it in one go is the interpreter's recursion
        value = value.pop()
