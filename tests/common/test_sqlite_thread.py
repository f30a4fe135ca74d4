"""Transactions on a file in its thread: shared commits, and each one's own failure."""

import asyncio
import sqlite3
import threading

import pytest

from services.common.sqlite_thread import MAX_TRANSACTIONS_PER_COMMIT, SqliteThread
from tests.common.support import BOUND_S


class File:
    """A file, with the statements that began and ended its transactions."""

    def __init__(self, path):
        self.path, self.statements, self.refused = path, [], 0
        self.thread = SqliteThread("test", self.open)

    def open(self):
        if self.refused:
            self.refused -= 1
            raise OSError("no room")
        db = sqlite3.connect(self.path, timeout=0.05, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE IF NOT EXISTS numbers (number INTEGER PRIMARY KEY)")
        db.set_trace_callback(self.statements.append)
        return db

    def add(self, number):
        return asyncio.ensure_future(
            self.thread.do(lambda db: db.execute("INSERT INTO numbers VALUES (?)", (number,)).lastrowid)
        )

    async def held(self):
        """A transaction that waits in the thread for what this gives."""
        go, there = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(_):
            loop.call_soon_threadsafe(there.set)
            assert go.wait(BOUND_S)

        task = asyncio.ensure_future(self.thread.do(wait))
        await there.wait()
        return go, task

    def commits(self):
        return self.statements.count("COMMIT")

    def numbers(self):
        with sqlite3.connect(self.path) as db:
            found = [row[0] for row in db.execute("SELECT number FROM numbers ORDER BY number")]
        db.close()
        return found


@pytest.fixture
async def file(tmp_path):
    file = File(tmp_path / "f")
    async with asyncio.timeout(BOUND_S):
        yield file
        await file.thread.close()


async def test_what_comes_during_a_commit_shares_the_next_up_to_a_limit(file):
    go, task = await file.held()
    count = MAX_TRANSACTIONS_PER_COMMIT + 2
    added = [file.add(number) for number in range(count)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*added) == list(range(count))
    await task
    assert file.commits() == 3
    assert file.numbers() == list(range(count))


async def test_a_commit_waits_for_the_disk_when_any_of_its_transactions_asks_for_that(file):
    def level(db):
        return db.execute("PRAGMA synchronous").fetchone()[0]

    full, normal = 2, 1
    assert await file.thread.do(level) == full
    assert await file.thread.do(level, durable=False) == normal
    go, task = await file.held()
    both = [asyncio.ensure_future(file.thread.do(level, durable=durable)) for durable in (False, True)]
    await asyncio.sleep(0)
    go.set()
    await task
    assert await asyncio.gather(*both) == [full, full]
    assert await file.thread.do(level, durable=False) == normal


async def test_one_that_raises_undoes_nothing_but_itself(file):
    go, task = await file.held()
    added = [file.add(number) for number in (1, 2, 2, 3)]
    await asyncio.sleep(0)
    go.set()
    results = await asyncio.gather(*added, return_exceptions=True)
    assert [result for result in results if isinstance(result, int)] == [1, 2, 3]
    assert isinstance(results[2], sqlite3.IntegrityError)
    await task
    assert file.numbers() == [1, 2, 3]


async def test_a_cancelled_caller_undoes_nothing_and_closing_waits_for_its_work(file):
    go, task = await file.held()
    added = file.add(1)
    await asyncio.sleep(0)
    added.cancel()
    closing = asyncio.ensure_future(file.thread.close())
    await asyncio.sleep(0)
    go.set()
    await closing
    await task
    assert file.numbers() == [1]
    with pytest.raises(sqlite3.ProgrammingError):
        await file.add(2)
    await file.thread.close()


async def test_a_file_that_could_not_be_opened_is_tried_again(file):
    file.refused = 1
    with pytest.raises(OSError, match="no room"):
        await file.add(1)
    assert await file.add(1) == 1


async def test_what_waits_for_another_process_waits_together(file):
    await file.add(0)
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = file.statements.count("BEGIN IMMEDIATE")
    results = await asyncio.gather(*map(file.add, range(1, 10)), return_exceptions=True)
    other.close()
    assert all(isinstance(result, sqlite3.OperationalError) for result in results)
    # The first went alone, those that came meanwhile together.
    assert file.statements.count("BEGIN IMMEDIATE") == began + 2
    assert await file.add(1) == 1


async def test_a_commit_that_fails_leaves_no_transaction_open(file):
    await file.add(1)

    def fill(db):
        raise sqlite3.OperationalError(db.execute("SELECT count(*) FROM numbers").fetchone()[0])

    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="1"):
            await file.thread.do(fill)
    assert await file.add(2) == 2
