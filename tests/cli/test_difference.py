from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.recordings.difference import excerpts, first_difference, shown
from gateway.engine.contract import ABSENT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def spelled(before, after, ignore=()):
    found = first_difference(before, after, ignore)
    return None if found is None else (found.path, found.before, found.after)


def test_the_first_place_in_the_order_of_the_recorded_side_is_named():
    assert spelled({"a": 1, "b": 2, "c": 3}, {"c": 9, "b": 8, "a": 1}) == ("b", 2, 8)
    assert spelled({"a": [1, {"x y": 1}]}, {"a": [1, {"x y": 2}]}) == ('a[1]["x y"]', 1, 2)
    assert spelled([1], [1, 2]) == ("[1]", ABSENT, 2)
    assert spelled({"a": 1}, {}) == ("a", 1, ABSENT)
    assert spelled({}, {"a-b": None}) == ("a-b", ABSENT, None)
    assert spelled("x", "y") == ("(the whole)", "x", "y")
    assert spelled({}, []) == ("(the whole)", {}, [])


def test_order_of_members_and_spelling_of_numbers_do_not_count_but_kinds_do():
    assert spelled({"a": 1, "b": 2}, {"b": 2, "a": 1}) is None
    assert spelled(1, 1.0) is None
    assert spelled(1, True) == ("(the whole)", 1, True)
    assert spelled(0, None) == ("(the whole)", 0, None)
    assert spelled("1", 1) == ("(the whole)", "1", 1)


def test_ignored_members_are_those_of_the_outermost_object():
    assert spelled({"h": 1, "a": {"h": 1}}, {"h": 2, "a": {"h": 2}}, ["h"]) == ("a.h", 1, 2)


def test_depth_does_not_matter():
    one, other = 1, 2
    for _ in range(5000):
        one, other = [one], [other]
    assert spelled(one, other)[0] == "[0]" * 5000


@given(JSON, JSON)
def test_values_are_equal_exactly_when_there_is_no_difference(one, other):
    assert first_difference(one, one) is None
    if repr(one) == repr(other):
        assert first_difference(one, other) is None
    if first_difference(one, other) is None:
        assert one == other


def test_long_texts_are_shown_around_what_differs():
    before, after = "a" * 1000 + "X" + "b" * 1000, "a" * 1000 + "Y" + "b" * 1000
    one, other = excerpts(before, after)
    assert len(one) < 250
    assert "aX" in one
    assert "aY" in other
    assert one.startswith('…"')
    assert one.endswith("… (2001 characters)")
    assert excerpts("same start", "same start and more") == ('"same start"', '"same start and more"')
    assert shown([1] * 1000).endswith("… (2001 characters)")
    assert shown(ABSENT) == "(not there)"
