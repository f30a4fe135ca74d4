"""Entries, their sizes, and the edits between transcripts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import jsjson
from protocol.transcript import Entry, FoldError, Update, common_prefix, entries_of, fold, list_size, updates
from protocol.utf16 import utf16_length
from tests.protocol.json_values import values


def entry_of_size(size: int, letter: str = "x") -> Entry:
    entry = Entry.from_value(letter * (size - 2))
    assert entry.size == size
    return entry


def shape(edits: list[Update]) -> list[tuple[int, int, int]]:
    return [(edit.keep, len(edit.entries), edit.length) for edit in edits]


A, B = Entry.from_value({"a": 1}), Entry.from_value({"b": 2})


@pytest.mark.spec("harness-api:10.23")
def test_edits_keep_the_common_prefix_and_pack_the_rest_by_size() -> None:
    assert updates([A, B], [A, B]) == []
    (shrunk,) = updates([A, B], [A])
    assert jsjson.dumps(shrunk.document()) == '{"keep":1,"entries":[],"length":1}'
    start = [A, B, A, B]
    three = [entry_of_size(120_000, letter) for letter in "xyz"]
    assert shape(updates(start, start + three)) == [(4, 2, 6), (6, 1, 7)]
    big = [entry_of_size(10), entry_of_size(300_000), entry_of_size(10)]
    assert shape(updates([], big)) == [(0, 1, 1), (1, 1, 2), (2, 1, 3)]
    exact = [entry_of_size(131_072, letter) for letter in "xyz"]
    assert shape(updates([], exact)) == [(0, 2, 2), (2, 1, 3)]
    assert Entry.from_value("😀").size == 4


def test_the_order_of_members_tells_entries_apart() -> None:
    one, other = Entry.from_value({"a": 1, "b": 2}), Entry.from_value({"b": 2, "a": 1})
    assert one != other
    assert shape(updates([A, one], [A, other])) == [(1, 1, 2)]


def test_an_entry_is_its_text_and_gives_a_new_value_each_time() -> None:
    entry = Entry.from_value({"b": 1.5, "2": "é", "a": [None]})
    assert entry.text == '{"2":"é","b":1.5,"a":[null]}'
    first = entry.value()
    assert first == {"2": "é", "b": 1.5, "a": [None]}
    assert entry.value() is not first
    assert entry == Entry(entry.text)
    assert hash(entry) == hash(Entry(entry.text))
    assert entry != entry.text
    assert jsjson.dumps([entry.raw()]) == f"[{entry.text}]"


@pytest.mark.parametrize(
    "update", [Update(3, (A,), 4), Update(-1, (), -1), Update(1, (A,), 3), Update(0, (), 1)]
)
def test_an_edit_that_does_not_fit_is_refused(update: Update) -> None:
    with pytest.raises(FoldError):
        fold([A, B], update)


transcripts = st.lists(values.map(Entry.from_value), max_size=8)


@given(transcripts, transcripts, st.integers(0, 8), st.integers(1, 60))
def test_edits_lead_from_any_transcript_to_any_other(
    before: list[Entry], added: list[Entry], keep: int, chunk_units: int
) -> None:
    after = before[:keep] + added
    edits = updates(before, after, chunk_units)
    folded: list[Entry] = before
    for edit in edits:
        folded = fold(folded, edit)
        assert len(edit.entries) <= 1 or sum(entry.size for entry in edit.entries) <= chunk_units
    assert folded == after
    assert (edits == []) == (before == after)
    assert not edits or edits[0].keep == common_prefix(before, after)


@given(st.lists(values, max_size=5))
def test_sizes_are_those_of_the_written_text(items: list[Any]) -> None:
    entries = entries_of(items)
    assert list_size(entries) == utf16_length(jsjson.dumps(items))
    assert [entry.size for entry in entries] == [utf16_length(jsjson.dumps(item)) for item in items]
