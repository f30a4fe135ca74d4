"""Reading JSON: numbers, keys, surrogates, depth, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.jsjson import JsonDepthError, JsonError, Parsed, dumps, js_order, loads, parse
from tests.protocol.json_values import nested, values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0", 1),
        ("-0", 0),
        ("-0.0", 0),
        ("1E+2", 100),
        ("9007199254740992", 2**53),
        ("9007199254740993", 2**53),
        ("9007199254740994", 9007199254740994.0),
        ("-9007199254740994", -9007199254740994.0),
        ("123456789012345678901", 1.2345678901234568e20),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("1e-400", 0),
        ("9" * 10_000, math.inf),
        ("0." + "3" * 10_000, 1 / 3),
    ],
)
def test_numbers_are_doubles_and_integers_up_to_two_to_the_53rd(text: str, value: float) -> None:
    read = loads(text)
    assert read == value
    assert type(read) is type(value)


def test_integers_of_any_length_need_no_change_of_the_digit_limit() -> None:
    assert sys.get_int_max_str_digits() == 4300
    assert loads("1" * 400_000) == math.inf
    assert loads("-" + "1" * 300) == -1.1111111111111112e299


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('{"b":1,"a":2}', ["b", "a"]),
        ('{"b":1,"10":2,"9":3,"a":4}', ["9", "10", "b", "a"]),
        ('{"4294967295":1,"4294967294":2}', ["4294967294", "4294967295"]),
        ('{"01":1,"-1":2,"1.0":3,"0":4}', ["0", "01", "-1", "1.0"]),
        ('{"b":1,"\\u0031":2}', ["1", "b"]),
        ('{"b" \n:1,"1"\t:2}', ["1", "b"]),
        ('{"":1,"2":2}', ["2", ""]),
        ('{"²":1,"1":1}', ["1", "²"]),
    ],
)
def test_array_indices_come_first_and_other_keys_keep_their_place(text: str, keys: list[str]) -> None:
    value = loads(text)
    assert isinstance(value, dict)
    assert list(value) == keys


def test_a_repeated_key_keeps_its_first_place_and_its_last_value() -> None:
    assert dumps(loads('{"a":1,"b":2,"a":3}')) == '{"a":3,"b":2}'
    assert dumps(loads('{"z":0,"1":1,"b":2,"1":3}')) == '{"1":3,"z":0,"b":2}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\ud83d"', "\ud83d"),
        ('"\\ude00\\ud83d"', "\ude00\ud83d"),
        ('"\\\\ud83d"', "\\ud83d"),
        ('"\ud83d"', "\ud83d"),
        ('"\ud83d\\ude00"', "😀"),
        ('"\u2028\x7f"', "\u2028\x7f"),
    ],
)
def test_surrogates_are_joined_in_pairs_and_kept_alone(text: str, value: str) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        '{"a":1,}',
        "{a:1}",
        "{'a':1}",
        '{"a" 1}',
        '{"a":}',
        "[1 2]",
        "[1]]",
        "1 2",
        "01",
        "+1",
        "1.",
        ".5",
        "-",
        "NaN",
        "Infinity",
        "-Infinity",
        "nul",
        "True",
        '"a',
        '"\\x"',
        '"\\u12g4"',
        '"a\nb"',
        "\ufeff{}",
        "\u00a01",
        "[1]\x00",
        b"\xff",
        b'"\xed\xa0\xbd"',
        b"\xef\xbb\xbf1",
    ],
)
@pytest.mark.parametrize("depth", [0, 300])
def test_what_is_not_json_is_refused_at_any_depth(text: str | bytes, depth: int) -> None:
    wrapped = b"[" * depth + (text if isinstance(text, bytes) else text.encode()) + b"]" * depth
    if depth and text in ("", " "):
        return  # an empty array
    with pytest.raises(JsonError) as caught:
        loads(wrapped)
    assert not isinstance(caught.value, JsonDepthError)


def test_the_error_quotes_nothing_of_the_text() -> None:
    with pytest.raises(JsonError) as caught:
        loads('{"token":"hunter2" "x":1}')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("levels", [1, 199, 200, 201, 250, 899, 900])
def test_nesting_up_to_the_limit_is_read(levels: int) -> None:
    text = nested(levels, '{"a":[1,{"b":null}],"c":{}}' if levels <= 897 else "")
    assert dumps(loads(text)) == text


def test_deeper_nesting_has_an_error_of_its_own_in_bounded_time() -> None:
    for text in (nested(901), nested(1_000_000), "[" * 1_000_000, '{"a":' * 5_000):
        with pytest.raises(JsonDepthError):
            loads(text)
    with pytest.raises(JsonDepthError):
        parse(nested(6), max_depth=5)
    assert parse(nested(5), max_depth=5).value == [[[[[]]]]]


def test_brackets_in_strings_are_not_nesting() -> None:
    text = json.dumps(["[" * 2_000 + '"]\\', {"{" * 950: "\\\\" * 3 + '"['}], ensure_ascii=False)
    assert dumps(loads(text)) == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def test_a_caller_deep_in_the_stack_can_still_read() -> None:
    def descend(levels: int) -> Any:
        return descend(levels - 1) if levels else loads(nested(150, "1"))

    frame, used = sys._getframe(), 0
    while frame is not None:  # type: ignore[redundant-expr]
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    assert dumps(descend(sys.getrecursionlimit() - used - 40)) == nested(150, "1")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('{"a":[1,"x",null,true,{"b":1.0}]}', True),
        ("9007199254740992", True),
        ("9007199254740993", True),
        ("0.5", False),
        ("1e400", False),
        ("9007199254740994", False),
        ('["é😀\\n\\u00e9"]', True),
        ('{"é":1}', False),
        ('{"é:":1}', False),
        ('{"a":":é:"}', True),
        ('{"é" :1}', False),
        ('{"\\u00e9":1}', False),
        ('{"x":1,"y":"é"}', True),
        ('["\\ud83d\\ude00"]', True),
        ('["\\ud83d"]', False),
        ('["\\uDE00"]', False),
        ('["\\\\ud83d"]', True),
        ('["\\\\ud83d\\ude00"]', False),
        ('["\\ud83d\\"\\ude00"]', False),
        ('["\ud83d"]', False),
        (nested(249), True),
        (nested(250), False),
    ],
)
def test_a_text_is_plain_when_orjson_may_write_its_value(text: str, plain: bool) -> None:
    assert parse(text).plain is plain


@given(values, st.booleans())
def test_what_was_written_reads_back_equal_and_plain_values_write_the_same_either_way(
    value: Any, escaped: bool
) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    parsed = parse(text)
    assert parsed.value == loads(dumps(value))
    if parsed.plain:
        assert dumps(parsed.value, plain=True) == dumps(parsed.value)


@given(st.text(alphabet='[]{}",:\\u01ed83 .-nulltrue\n', max_size=30))
def test_any_text_is_read_or_refused_with_the_one_error(text: str) -> None:
    try:
        parsed = parse(text)
    except JsonError:
        return
    assert isinstance(parsed, Parsed)
    assert parse(dumps(parsed.value)).value == parsed.value


def test_text_bytes_and_surrounding_space_are_the_same() -> None:
    assert loads(b' \r\n\t{"a":"\xc3\xa9"} ') == loads('{"a":"é"}') == {"a": "é"}


def test_an_object_in_order_stays_the_same_object() -> None:
    for members in ({}, {"a": 1}, {"1": 1, "2": 2, "a": 3}, {":": 1}):
        assert js_order(members) is members
    assert list(js_order({"a": 1, "95": 2, "9": 3})) == ["9", "95", "a"]


def test_large_documents_are_read_and_written_whole() -> None:
    text = '{"s":"' + "x\\n😀" * 1_000_000 + '"}'
    parsed = parse(text)
    assert parsed.plain
    assert dumps(parsed.value, plain=True) == dumps(parsed.value) == text
    many = "[" + ",".join(f'{{"id":{i},"name":"n{i}","ratio":{i}.5}}' for i in range(50_000)) + "]"
    assert dumps(loads(many)) == many
