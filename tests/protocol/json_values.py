"""Hypothesis strategies for JSON values as JavaScript can hold them, and for texts of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SAFE = 2**53

strings = st.text(max_size=12) | st.text(alphabet='\ud83d\ude00\udbff a1"\\\n\x00\x7f\u2028é😀', max_size=6)
keys = strings | st.sampled_from(
    ["0", "1", "10", "9", "007", "4294967294", "4294967295", "a", "B", "__proto__"]
)


def as_javascript_reads(number: float) -> int | float:
    """The number as `parse` gives it."""
    return int(number) if number.is_integer() and abs(number) <= SAFE else number


numbers = st.integers(-SAFE, SAFE) | st.floats(allow_nan=False, allow_infinity=False).map(as_javascript_reads)
scalars = st.none() | st.booleans() | numbers | strings


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arrays and objects of the children."""
    return st.lists(children, max_size=4) | st.dictionaries(keys, children, max_size=4)


values = st.recursive(scalars, containers, max_leaves=20)


def nested(levels: int, inner: str = "") -> str:
    """Arrays inside each other."""
    return "[" * levels + inner + "]" * levels
