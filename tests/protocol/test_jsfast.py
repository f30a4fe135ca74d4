"""What is said to be written the fast way is written as the other writer writes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.jsfast import MAX_LEVELS, writes_fast
from protocol.jsjson import MAX_SAFE, RawJson, dumps, loads

KEYS = st.one_of(st.sampled_from(["", "a", "é", "0", "7x", "10", "-1", "\ud800", "z"]), st.text(max_size=3))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.sampled_from(["\ud800", "\udc00\ud800", RawJson('{"b":1.0,"a":[]}')]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=20,
)


@given(VALUES)
def test_a_value_that_is_written_fast_gets_the_same_text(value: Any) -> None:
    if writes_fast(value):
        assert dumps(value, plain=True) == dumps(value)


@given(VALUES.filter(lambda value: not isinstance(value, RawJson)))
def test_a_value_that_was_read_and_is_written_fast_comes_back(value: Any) -> None:
    read = loads(dumps(value))
    if writes_fast(read):
        assert dumps(read, plain=True) == dumps(read)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "ü",
        None,
        True,
        0,
        -MAX_SAFE,
        [],
        {},
        (1, "a"),
        {"a": {"é": [None, 1, {"b": "c"}]}},
        RawJson("1.0"),
    ],
)
def test_plain_documents_are_written_fast(value: Any) -> None:
    assert writes_fast(value)


@pytest.mark.parametrize("value", [1.5, 1e21, MAX_SAFE + 1, {"1": 0}, [{"0": 1}], b"bytes", {1, 2}, object()])
def test_what_orjson_writes_in_another_way_is_not(value: Any) -> None:
    assert not writes_fast(value)
    assert not writes_fast({"a": [value]})


def test_deep_documents_are_not() -> None:
    value: Any = "x"
    for _ in range(MAX_LEVELS):
        value = [value]
    assert writes_fast(value)
    assert not writes_fast([value])
