"""The writer thread: commits that are shared, transactions that fail alone, files that are not ours."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.common.process import StartFailed
from services.dev_core.store import database, effects, events, sessions, transaction
from services.dev_core.store.database import Store
from services.dev_core.store.opening import MEMORY
from services.dev_core.store.schema import SCHEMA_VERSION
from services.dev_core.store.transaction import Row, StoreFailed, Tx
from services.dev_core.transcripts import fold_log
from services.dev_core.turns import lease


@pytest.fixture(params=["memory", "loop", "thread"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    path = MEMORY if request.param == "memory" else str(tmp_path / "core.db")
    made = await Store.open(path, full_sync=request.param == "thread")
    yield made
    await made.close()


def put(key: str) -> object:
    def work(tx: Tx) -> str:
        tx.run("INSERT INTO manifests (hash, text) VALUES (?, ?)", (key, "{}"))
        return key

    return work


def keys(tx: Tx) -> list[str]:
    return [row[0] for row in tx.all("SELECT hash FROM manifests ORDER BY hash")]


def hold(store: Store) -> threading.Event:
    """Keeps the writer busy until the event is set, so that what follows shares one commit.

    What is handed in before the caller's next await shares a commit anyway.
    """
    go_on = threading.Event()
    store.submit(lambda tx: go_on.wait(10))
    return go_on


async def test_transactions_run_in_the_order_they_were_handed_in(store: Store) -> None:
    seen: list[int] = []
    jobs = [store.submit(lambda tx, n=n: seen.append(n)) for n in range(300)]
    await asyncio.gather(*jobs)
    assert seen == list(range(300))


async def test_one_that_fails_among_many_undoes_only_itself(store: Store) -> None:
    go_on = hold(store)

    def fail(tx: Tx) -> None:
        tx.run("INSERT INTO manifests (hash, text) VALUES ('half', '{}')")
        raise LookupError("no")

    jobs = [store.submit(put("a")), store.submit(fail), store.submit(put("a")), store.submit(put("b"))]  # type: ignore[arg-type]
    go_on.set()
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert results[0] == "a"
    assert isinstance(results[1], LookupError)
    assert isinstance(results[2], StoreFailed)
    assert results[3] == "b"
    assert await store.read(keys) == ["a", "b"]


async def test_one_that_fails_alone_leaves_nothing(store: Store) -> None:
    def fail(tx: Tx) -> None:
        tx.run("INSERT INTO manifests (hash, text) VALUES ('half', '{}')")
        raise LookupError("no")

    with pytest.raises(LookupError):
        await store.write(fail)
    assert await store.read(keys) == []
    assert await store.write(put("a")) == "a"  # type: ignore[arg-type]


async def test_a_database_that_takes_nothing_more_fails_its_callers_and_recovers(tmp_path: Path) -> None:
    store = await Store.open(str(tmp_path / "core.db"))

    def limit(pages: int) -> None:
        # A full disk: the file may not grow.
        store._writer.connection.execute(f"PRAGMA max_page_count = {pages}")

    def big(tx: Tx) -> None:
        tx.run("INSERT INTO manifests (hash, text) VALUES ('big', ?)", ("x" * 1_000_000,))

    try:
        await store.write(put("a"))  # type: ignore[arg-type]
        await store.write(lambda tx: limit(1))
        go_on = hold(store)
        jobs = [store.submit(put("b")), store.submit(big), store.submit(put("c"))]  # type: ignore[arg-type]
        go_on.set()
        results = await asyncio.gather(*jobs, return_exceptions=True)
        assert isinstance(results[1], StoreFailed)
        kept = [key for key, result in zip("b-c", results, strict=True) if result == key]
        assert await store.read(keys) == ["a", *kept]
        await store.write(lambda tx: limit(1_000_000))
        await store.write(big)
    finally:
        await store.close()


async def test_events_are_announced_once_they_are_committed_and_not_when_they_are_not(store: Store) -> None:
    announced: list[dict[str, bool]] = []
    store.on_events = announced.append

    def touch(tx: Tx) -> None:
        tx.touch("s1", at_once=False)

    def touch_and_fail(tx: Tx) -> None:
        tx.touch("s2", at_once=True)
        raise LookupError("no")

    await store.write(touch)
    with pytest.raises(LookupError):
        await store.write(touch_and_fail)
    await store.write(keys)
    assert announced == [{"s1": False}]


async def test_a_caller_that_leaves_undoes_nothing(store: Store) -> None:
    go_on = hold(store)
    job = store.submit(put("a"))  # type: ignore[arg-type]
    job.cancel()
    go_on.set()
    assert await store.read(keys) == ["a"] or await store.write(keys) == ["a"]


async def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = await Store.open(str(tmp_path / "core.db"))
    last = store.submit(put("a"))  # type: ignore[arg-type]
    await store.close()
    assert await last == "a"
    with pytest.raises(StoreFailed):
        await store.write(keys)
    await store.close()


async def test_a_file_is_made_with_its_folder_and_kept_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "core.db"
    for _ in range(2):
        store = await Store.open(str(path), full_sync=True)
        await store.write(lambda tx: tx.run("INSERT OR IGNORE INTO manifests VALUES ('a', '{}')"))
        assert await store.read(keys) == ["a"]
        await store.close()
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_two_cores_never_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "core.db")
    first = await Store.open(path)
    with pytest.raises(StartFailed, match="in use by another"):
        await Store.open(path)
    await first.close()
    await (await Store.open(path)).close()


async def test_files_of_others_and_of_newer_versions_are_left_alone(tmp_path: Path) -> None:
    foreign, newer, text = tmp_path / "foreign.db", tmp_path / "newer.db", tmp_path / "text.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE notes (x)")
    connection.close()
    await (await Store.open(str(newer))).close()
    with sqlite3.connect(newer) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    text.write_text("this is a text file, not a database" * 10)
    for path, says in ((foreign, "not a database of"), (newer, "newer version"), (text, "can't be opened")):
        with pytest.raises(StartFailed, match=says):
            await Store.open(str(path))
    with pytest.raises(StartFailed):
        await Store.open(str(tmp_path))


async def test_a_slow_disk_is_waited_for_in_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "SLOW_COMMIT_S", 0.0)
    store = await Store.open(str(tmp_path / "core.db"))
    try:
        here = threading.get_ident()
        assert await store.write(lambda tx: threading.get_ident()) == here
        assert await store.write(lambda tx: threading.get_ident()) != here
        monkeypatch.setattr(database, "SLOW_COMMIT_S", 60.0)
        store._writer.thread_until = 0.0
        assert await store.write(lambda tx: threading.get_ident()) == here
    finally:
        await store.close()


async def test_a_commit_that_waits_for_the_disk_is_never_made_in_the_loop(tmp_path: Path) -> None:
    store = await Store.open(str(tmp_path / "core.db"), full_sync=True)
    try:
        assert await store.write(lambda tx: threading.get_ident()) != threading.get_ident()
        assert await store.read(lambda tx: threading.get_ident()) != threading.get_ident()
    finally:
        await store.close()


async def test_the_journal_is_emptied_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "COMMITS_PER_CHECKPOINT", 10)
    path = tmp_path / "core.db"
    store = await Store.open(str(path))
    try:
        before = path.stat().st_size
        for n in range(40):
            await store.write(
                lambda tx, n=n: tx.run("INSERT INTO manifests VALUES (?, ?)", (str(n), "x" * 10_000))
            )
        await store.read(keys)
        assert path.stat().st_size > before
    finally:
        await store.close()


async def test_a_callers_fault_does_not_keep_the_others_waiting(store: Store) -> None:
    def fail(result: object, error: BaseException | None) -> None:
        raise LookupError("no")

    store.run(keys, fail)
    assert await store.write(keys) == []


async def test_no_question_about_one_session_walks_the_others(store: Store) -> None:
    """Whatever is asked about a session is found through an index that begins with the session."""

    def plans(tx: Tx) -> list[str]:
        asked: list[tuple[str, tuple[Any, ...]]] = []

        class Spy(Tx):
            def one(self, sql: str, parameters: Iterable[Any] = ()) -> Row | None:
                asked.append((sql, tuple(parameters)))
                return super().one(sql, parameters)

            def all(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
                asked.append((sql, tuple(parameters)))
                return super().all(sql, parameters)

            def each(self, sql: str, parameters: Iterable[Any] = ()) -> Iterator[Row]:
                asked.append((sql, tuple(parameters)))
                return super().each(sql, parameters)

        spy = Spy(tx._connection)
        effects.of_session(spy, "s", turn_id=None, after=0, limit=10)
        effects.invoking(spy, "s")
        effects.completed_of_segment(spy, "s", "t", 0)
        effects.call_ids(spy, "s", "t")
        events.page(spy, "s", 0, limit=10, max_chars=10)
        events.last_seq(spy, "s")
        sessions.last_turn(spy, "s")
        sessions.documents(spy, "s")
        fold_log(spy, "s", -1)
        lease.runnable(spy)
        lease.leased(spy)
        effects.open_actions(spy, "new")
        found = []
        for sql, parameters in asked:
            steps = tx.all(f"EXPLAIN QUERY PLAN {sql}", parameters)
            found += [f"{step[3]}: {sql}" for step in steps]
        return found

    narrow = ("session_id=?", "sessions_to_resume", "actions_open")
    looks = [plan for plan in await store.read(plans) if plan.startswith(("SCAN", "SEARCH"))]
    assert looks
    assert [plan for plan in looks if not any(name in plan.partition(": ")[0] for name in narrow)] == []


async def test_the_newest_turn_is_found_without_looking_at_the_others(store: Store) -> None:
    def plan(tx: Tx) -> list[str]:
        class Spy(Tx):
            def one(self, sql: str, parameters: Iterable[Any] = ()) -> Row | None:
                return ("\n".join(step[3] for step in self.all(f"EXPLAIN QUERY PLAN {sql}", parameters)),)

        return list(sessions.last_turn(Spy(tx._connection), "s") or ())

    (steps,) = await store.read(plan)
    assert "turns_of_session" in steps
    assert "TEMP B-TREE" not in steps


def said(text: str, session_id: str = "s") -> Callable[[Tx], int]:
    def work(tx: Tx) -> int:
        return events.append(tx, session_id, text, "t", "{}", 0)

    return work


async def test_events_are_numbered_without_gaps_also_after_transactions_that_failed(store: Store) -> None:
    def say_and_fail(tx: Tx) -> None:
        events.append(tx, "s", "lost", "t", "{}", 0)
        raise LookupError("no")

    def numbers(tx: Tx) -> list[tuple[int, str]]:
        return [(event.seq, event.type) for event in events.page(tx, "s", 0, limit=100, max_chars=10_000)]

    assert await store.write(said("a")) == 1
    with pytest.raises(LookupError):
        await store.write(say_and_fail)
    assert await store.write(said("b")) == 2
    together = [store.submit(said("c")), store.submit(say_and_fail), store.submit(said("d"))]
    results = await asyncio.gather(*together, return_exceptions=True)
    assert [results[0], results[2]] == [3, 4]
    assert await store.read(numbers) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


async def test_events_are_numbered_on_when_too_many_sessions_are_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MAX_KNOWN_SEQS", 2)
    for expected in (1, 2):
        for session_id in ("s1", "s2", "s3"):
            assert await store.write(said("x", session_id)) == expected
