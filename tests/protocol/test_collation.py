"""The order of manifest keys, against what ICU 78.2 recorded."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.collation import collated, collation_key
from protocol.collation_weights import weights
from tests.protocol.json_values import strings

RECORDED = json.loads((Path(__file__).parent / "collation" / "recorded_order.json").read_text())
PRINTABLE = (
    " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789aAbBcCdDeEfFgGhHiIjJkKlLmMnNoOpPqQrRsStTuUvVwWxXyYzZ"
)


def test_ascii_has_the_printed_order() -> None:
    assert "".join(collated(sorted(PRINTABLE))) == PRINTABLE
    assert "".join(sorted(PRINTABLE, key=collation_key)) == PRINTABLE


def test_what_icu_recorded_is_in_order_here() -> None:
    assert len(RECORDED) > 2_500
    keys = [[collation_key(text) for text in group] for group in RECORDED]
    assert all(len(set(group)) == 1 for group in keys)
    flat = [group[0] for group in keys]
    assert all(before < after for before, after in itertools.pairwise(flat))


@pytest.mark.parametrize(
    "ordered",
    [
        ["résumé", "Résumé", "résumés"],
        ["resume", "Resume", "résumé"],
        ["a", "á", "b"],
        ["ss", "ß", "st"],
        ["e\u0301x", "f"],
        ["~", "😀", "1", "½", "a", "я", "あ", "中", "\ue000", "\uffff"],
        ["и", "ї", "й", "к"],
        ["\ud800", "\ud801", "\ue000"],
        ["แก", "โก"],
    ],
)
def test_letters_decide_first_then_accents_then_case(ordered: list[str]) -> None:
    assert collated(reversed(ordered)) == ordered


def test_keys_that_compare_equal_keep_their_places() -> None:
    for equal in (["a\u0301", "á"], ["\u0001a", "a", "a\u0000"], ["Å", "\u212b"], ["a\u00ad", "a"]):
        for order in itertools.permutations(equal):
            assert collated(order) == list(order)


@given(st.text(alphabet=st.characters(max_codepoint=0x7F), max_size=6), st.text(max_size=6))
def test_the_ascii_shortcut_agrees_with_the_whole_algorithm(one: str, other: str) -> None:
    other = other.encode("ascii", "ignore").decode()
    expected = sorted([one, other], key=collation_key)
    assert collated([one, other]) == expected


@given(strings)
def test_canonically_equivalent_strings_are_equal(text: str) -> None:
    key = collation_key(text)
    assert key == collation_key(unicodedata.normalize("NFD", text))
    assert key == collation_key(unicodedata.normalize("NFC", text))


@given(
    st.lists(
        st.sampled_from(["é", "\u0301", "\u0323", "\u0327", "각", "a", "\u0344", "\U0001d15e"]), max_size=9
    )
)
def test_long_strings_are_decomposed_like_short_ones(chars: list[str]) -> None:
    head, text = "x" * 1_024, "".join(chars)
    whole = [list(level) for level in collation_key(head + text)]
    parts = zip(collation_key(head), collation_key("x" + text), strict=True)
    assert whole == [[*before, *after[1:]] for before, after in parts]


def test_a_mark_finds_its_letter_across_another_mark() -> None:
    assert collation_key("и\u0323\u0306") == collation_key("й\u0323")
    assert collation_key("и\u0308\u0306") != collation_key("й\u0308")


def test_characters_without_weights_sort_by_number() -> None:
    assert collated(["\U000f0001", "\U000f0000", "\u0378"]) == ["\u0378", "\U000f0000", "\U000f0001"]


def test_every_contraction_is_found_from_its_first_character() -> None:
    table = weights()
    assert len(table.contractions) > 900
    for text in table.contractions:
        assert len(text) <= table.contraction_starts[text[0]]


def test_long_keys_are_compared_whole() -> None:
    long = "é中" * 100_000
    assert collated([long + "b", long + "a"]) == [long + "a", long + "b"]


@pytest.mark.parametrize("text", ["\u0f71", "и\u0323\u0306", "\u0301\u0323", "\u0fb2\u0f71\u0301\u0f80"])
def test_endless_marks_take_time_in_proportion(text: str) -> None:
    assert len(collation_key(text * 100_000)[2]) >= 100_000
