"""Transcripts that are kept folded: what they cost and when they are folded anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from protocol.transcript import Entry
from services.dev_core.store import events
from services.dev_core.store.database import Store
from services.dev_core.store.opening import MEMORY
from services.dev_core.store.transaction import Tx
from services.dev_core.transcripts import Transcripts
from services.dev_core.turns.settle import Edit


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = await Store.open(MEMORY)
    yield made
    await made.close()


def entries(*texts: str) -> tuple[Entry, ...]:
    return tuple(Entry(f'"{text}"') for text in texts)


async def record(store: Store, base: int, edit: Edit) -> int:
    payload = (
        f'{{"keep":{edit.keep},"entries":[{",".join(e.text for e in edit.entries)}],'
        f'"length":{edit.keep + len(edit.entries)}}}'
    )

    def append(tx: Tx) -> int:
        return events.append(tx, "s", "transcript.updated", "t", payload, 0, base=base)

    return await store.write(append)


async def texts(transcripts: Transcripts, cursor: int) -> list[str]:
    return [entry.text.strip('"') for entry in await transcripts.at("s", cursor)]


async def test_a_transcript_that_grows_is_never_folded_again(store: Store) -> None:
    transcripts = Transcripts(store)
    cursor, length = -1, 0
    for n in range(50):
        edit = Edit(length, entries(str(n)))
        after = await record(store, cursor, edit)
        transcripts.advance("s", cursor, after, [edit])
        cursor, length = after, length + 1
    assert await texts(transcripts, cursor) == [str(n) for n in range(50)]
    assert transcripts.folds == 0


async def test_another_position_is_folded_from_the_log_along_its_own_edits(store: Store) -> None:
    first = await record(store, -1, Edit(0, entries("a", "b")))
    dropped = await record(store, first, Edit(1, entries("x")))
    second = await record(store, first, Edit(2, entries("c")))
    third = await record(store, second, Edit(0, entries("summary")))
    transcripts = Transcripts(store)
    assert await texts(transcripts, dropped) == ["a", "x"]
    assert await texts(transcripts, second) == ["a", "b", "c"]
    assert await texts(transcripts, third) == ["summary"]
    assert await texts(transcripts, first) == ["a", "b"]
    assert transcripts.folds == 4
    assert await texts(transcripts, -1) == []


async def test_edits_from_elsewhere_than_what_is_kept_are_left_to_the_log(store: Store) -> None:
    first = await record(store, -1, Edit(0, entries("a")))
    second = await record(store, first, Edit(1, entries("b")))
    transcripts = Transcripts(store)
    transcripts.advance("s", first, second, [Edit(1, entries("b"))])
    assert await texts(transcripts, second) == ["a", "b"]
    assert transcripts.folds == 1


async def test_what_is_kept_is_bounded_and_the_oldest_goes_first(store: Store) -> None:
    transcripts = Transcripts(store, max_units=100)

    async def put(session: str, size: int) -> None:
        edit = Edit(0, (Entry('"' + "x" * (size - 2) + '"'),))
        transcripts.advance(session, -1, 1, [edit])

    await put("one", 40)
    await put("two", 40)
    await put("three", 40)
    assert list(transcripts._kept) == ["two", "three"]
    await put("huge", 101)
    assert list(transcripts._kept) == ["two", "three"]
    transcripts.advance("two", 1, 2, [Edit(1, (Entry('"' + "x" * 58 + '"'),))])
    assert list(transcripts._kept) == ["two"]
    assert transcripts._units == 100


async def test_a_position_that_is_no_edit_is_a_fault(store: Store) -> None:
    await store.write(partial(_other_event))
    with pytest.raises(LookupError):
        await Transcripts(store).at("s", 1)


def _other_event(tx: Tx) -> None:
    events.append(tx, "s", "turn.started", "t", "{}", 0)
