"""What orjson reads is what the standard library's scanner reads: value by value, key by key, refusal by refusal.

The scanner's grammar is JSON's own, and its numbers are Python's; so each text here is read both ways.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.canonical import canonical_request
from protocol.jsjson import JsonDepthError, JsonError, RawJson, dumps, js_members, parse, to_utf8, write
from protocol.jsonread import MAX_DEPTH, is_plain, read_odd
from protocol.utf16 import utf16_sort_key
from tests.protocol.json_values import nested, values

DATA = Path(__file__).parents[1] / "vectors" / "data"


def spelled(value: Any) -> str:
    """A value with its types, the order of its keys and every bit of its numbers, at any depth."""
    out: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            out.append(f"{{{len(item)}")
            for key, member in item.items():
                stack += [member, _Key(key)]
        elif isinstance(item, list):
            out.append(f"[{len(item)}")
            stack += item
        else:
            out.append(f"{type(item).__name__} {item!r}")
    return "\n".join(out)


class _Key(str):
    """A key among values."""


def outcome(read: Any, text: str | bytes, max_depth: int) -> str:
    """What a reader gives: the value, or which refusal."""
    try:
        return spelled(read(text, max_depth))
    except JsonDepthError:
        return "too deep"
    except JsonError:
        return "not JSON"


def check(text: str | bytes, max_depth: int = MAX_DEPTH) -> None:
    """Reads it both ways; what is called plain must write the same either way."""
    found = outcome(lambda given, depth: parse(given, max_depth=depth).value, text, max_depth)
    assert found == outcome(read_odd, text, max_depth)
    if found in ("too deep", "not JSON"):
        return
    parsed = parse(text, max_depth=max_depth)
    if parsed.plain:
        assert dumps(parsed.value, plain=True) == dumps(parsed.value)
        assert canonical_request(parsed.value, plain=True) == canonical_request(parsed.value)


digits = st.text("0123456789", min_size=1, max_size=25)
exponents = st.tuples(st.sampled_from(["e", "E", "e+", "E-"]), st.text("0123456789", max_size=3)).map("".join)
numbers = st.tuples(
    st.sampled_from(["", "-"]), digits, st.just("") | digits.map(".".__add__), st.just("") | exponents
).map("".join)
space = st.text(" \t\n\r", max_size=2)
PARTS = (
    *(
        "a",
        "0",
        "1",
        "00",
        "4294967294",
        "4294967295",
        "__proto__",
        "é",
        "😀",
        "\u2028",
        "\x7f",
        "[",
        "{",
        ":",
    ),
    *("\\n", '\\"', "\\\\", "\\/", "\\u0031", "\\u00e9", "\\u0000", "\\uFFFF"),
    *("\\ud83d\\ude00", "\\ud83d", "\\uDE00", "\ud83d", "\ude00"),
    *("3.5", "1e5", "1234567890123456789"),
    *("\\x", "\\u12g4", "\\", "\n", "\x00", "\x1f", '"', "\ufeff"),
)
string_parts = st.sampled_from(PARTS)
strings = st.lists(string_parts, max_size=4).map(lambda parts: '"' + "".join(parts) + '"')
scalars = (
    st.sampled_from(["null", "true", "false", "NaN", "Infinity", "-Infinity", "nul", ""]) | numbers | strings
)


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    item = st.tuples(space, inner, space).map("".join)
    comma = st.sampled_from([",", ",", ",", ",,", " "])
    member = st.tuples(space, strings, space, st.just(":"), item).map("".join)

    def joined(opened: str, items: list[str], comma: str, closed: str) -> str:
        return opened + comma.join(items) + closed

    return st.builds(
        joined,
        st.just("["),
        st.lists(item, max_size=4),
        comma,
        st.sampled_from(["]", "]", "]", "}", ",]", ""]),
    ) | st.builds(
        joined,
        st.just("{"),
        st.lists(member, max_size=4),
        comma,
        st.sampled_from(["}", "}", "}", "]", ",}", ""]),
    )


texts = st.tuples(space, st.recursive(scalars, _containers, max_leaves=12), space).map("".join)


@given(texts)
@example('{"b":1,"10":2,"9":{"2":0,"1":0},"10":3}')
@example('{"a":{"4294967295":1,"4294967294":[1.0,-0,-0.0,1e2]}}')
@example("[9007199254740991,9007199254740992,9007199254740993,9007199254740994,18446744073709551616]")
@example("[1e400,-1e400,1e-400,123456789012345.00000000000000001]")
@example('["\\ud83d\ude00"]')
def test_any_text_reads_the_same_with_and_without_orjson(text: str) -> None:
    check(text)
    check(text.encode("utf-8", "surrogatepass"))


@given(values, st.booleans(), st.data())
def test_a_text_with_one_character_changed_reads_or_is_refused_the_same(
    value: Any, escaped: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from([*'[]{}",:\\ue01.-+ \x00\x0b\x0c\x1f\u00a0\u2028\ufeff/N', ""]))
    check(text[:at] + put + text[at + data.draw(st.integers(0, 1)) :])


@given(st.binary(max_size=20), st.booleans())
def test_any_bytes_inside_a_string_or_alone_read_or_are_refused_the_same(data: bytes, alone: bool) -> None:
    check(data if alone else b'["' + data + b'"]')


@given(numbers)
def test_every_number_is_the_same_double(number: str) -> None:
    check(number)
    check(f"[{number}]")


def test_doubles_half_way_between_two_are_rounded_the_same() -> None:
    shuffled = random.Random(7)
    for _ in range(300):
        whole = shuffled.getrandbits(53) | 1 << 52
        for scale in (1, 2**10, 2**60):
            half = (2 * whole + 1) * scale  # exactly between two doubles
            for digits in (half, half + 1, half - 1):
                check(f"[{digits},{digits}.0,{digits}e-3,0.{digits},{digits}.{'0' * 30}1]")


@pytest.mark.parametrize("levels", [1, 200, 201, 249, 250, 251, 899, 900, 901, 1023, 1024, 1025, 1026, 5_000])
def test_nesting_is_read_and_refused_at_the_same_level(levels: int) -> None:
    inner = '{"2":[1.5,{"1":"\\ud800"}],"1":""}'
    for text in (nested(levels), nested(levels, "1.0"), '{"a":' * levels + "{}" + "}" * levels):
        check(text)
        check(text, max_depth=2_000_000)
        check(text[:-1])
    check(nested(max(levels - 3, 0), inner))
    check(nested(levels, '"' + "[" * 2_000 + '"'))


def test_a_byte_order_mark_and_other_encodings_are_refused() -> None:
    for text in ("\ufeff{}", "{}\ufeff", "[\ufeff]", "\u00a01", "\x0c1", "1\x00", "\x00"):
        check(text)
        check(text.encode())
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        check('{"a":1}'.encode(encoding))


def documents() -> Iterator[Path]:
    """A part of the recorded files, chosen anew for nobody: the same ones in each run."""
    files = sorted(path for path in DATA.rglob("*.json*") if path.stat().st_size < 300_000)
    return iter(random.Random(1).sample(files, min(len(files), 150)))


def test_recorded_documents_read_the_same() -> None:
    count = 0
    for path in documents():
        for line in path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]:
            check(line)
            count += 1
    assert count > 100


def written_slowly(value: Any) -> str:
    """The text without orjson."""
    return to_utf8("".join(write(value, js_members))).decode()


anything = st.recursive(
    values | st.integers() | st.floats() | st.text().map(RawJson),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


@given(anything)
def test_a_value_is_written_the_same_with_and_without_orjson(value: Any) -> None:
    assert dumps(value) == written_slowly(value)
    by_code_unit = write(
        value, lambda members: sorted(members.items(), key=lambda item: utf16_sort_key(item[0]))
    )
    assert canonical_request(value) == to_utf8("".join(by_code_unit))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, "x", None, True, (2**53, -(2**53))], "b": {}}, True),
        ([2**53 + 1], False),
        ([0.5], False),
        ({"é": 1}, False),
        ({"b": 1, "1": 2}, False),
        ({1: "not text"}, False),
        ([RawJson("1")], False),
        ([b"bytes"], False),
        (json.loads(nested(249)), True),
        (json.loads(nested(251)), False),
    ],
)
def test_only_what_orjson_writes_as_javascript_does_is_plain(value: Any, plain: bool) -> None:
    assert is_plain(value) is plain
