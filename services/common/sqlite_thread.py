"""One SQLite file behind a thread of its own: whole transactions in, results out after their commit.

A commit waits for the disk (SQLite's `synchronous=FULL` in WAL mode) unless nobody asked for that; what did not wait
is on the disk with the next commit that does. Transactions that come while one commits share the next commit, and so
its wait. One that raises undoes nothing but itself. A transaction may be run twice before it is committed, so it
does nothing but read and write its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
MAX_TRANSACTIONS_PER_COMMIT: Final = 128
"""Beyond it a commit takes nothing more, so that the first of a long queue is not kept waiting for the last."""


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any]
    future: asyncio.Future[Any]
    durable: bool
    result: Any = None
    error: Exception | None = None


class SqliteThread:
    """Runs transactions in the order in which they were asked for.

    `open_file` makes the connection (with `isolation_level=None` and `check_same_thread=False`); it runs in the
    thread before the first transaction, and again before the next one when it raised.
    """

    def __init__(self, name: str, open_file: Callable[[], sqlite3.Connection]) -> None:
        self._open_file = open_file
        self._thread = ThreadPoolExecutor(1, name)
        self._db: sqlite3.Connection | None = None
        self._waits_for_disk: bool | None = None
        self._waiting: list[_Job] = []
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def do(self, work: Work[T], *, durable: bool = True) -> T:
        """The transaction's result, when it is committed and, with `durable`, on the disk.

        Raises what `work` or `open_file` raised, or sqlite3.Error.

        Cancelling the caller does not undo it.
        """
        if self._closed:
            raise sqlite3.ProgrammingError("the file is closed")
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), durable)
        self._waiting.append(job)
        if not self._busy:
            self._hand_over(loop)
        result: T = await job.future
        return result

    async def aside(self, work: Callable[[], T]) -> T:
        """Runs something in the thread, outside of any transaction."""
        if self._closed:
            raise sqlite3.ProgrammingError("the file is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Closes the file after everything that was asked for; a second time changes nothing."""
        if self._closed:
            return
        self._closed = True
        await self._idle.wait()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._waiting[:MAX_TRANSACTIONS_PER_COMMIT]
        del self._waiting[: len(jobs)]
        self._busy = True
        self._idle.clear()
        self._thread.submit(self._serve, loop, jobs)

    def _deliver(self, loop: asyncio.AbstractEventLoop, jobs: Sequence[_Job]) -> None:
        self._busy = False
        if self._waiting:
            self._hand_over(loop)
        else:
            self._idle.set()
        for job in jobs:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)

    # In the thread

    def _serve(self, loop: asyncio.AbstractEventLoop, jobs: Sequence[_Job]) -> None:
        try:
            db = self._begun(any(job.durable for job in jobs))
        except Exception as error:  # noqa: BLE001  (whoever asked gets it)
            # Nobody has begun: one after another would only wait as long each.
            for job in jobs:
                job.error = error
        else:
            if not self._all(db, jobs):
                for job in jobs:
                    self._alone(job)
        # The loop may be gone: then nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._deliver, loop, jobs)

    def _begun(self, durable: bool) -> sqlite3.Connection:
        """The connection, with a transaction."""
        if self._db is None:
            self._db = self._open_file()
        if self._waits_for_disk is not durable:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._waits_for_disk = durable
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def _all(self, db: sqlite3.Connection, jobs: Sequence[_Job]) -> bool:
        """In the transaction that has begun; False when they must be tried one by one."""
        try:
            _work(db, jobs)
        except Exception as error:  # noqa: BLE001  (each alone finds out whose it was)
            if len(jobs) == 1:
                jobs[0].error = error
            return len(jobs) == 1
        return True

    def _alone(self, job: _Job) -> None:
        try:
            _work(self._begun(job.durable), (job,))
        except Exception as error:  # noqa: BLE001  (whoever asked gets it)
            job.error = error

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _work(db: sqlite3.Connection, jobs: Sequence[_Job]) -> None:
    """Works and commits, or leaves no transaction."""
    try:
        for job in jobs:
            job.result = job.work(db)
        db.execute("COMMIT")
    except BaseException:
        # A full disk makes SQLite end the transaction by itself.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
