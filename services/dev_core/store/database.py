"""SQLite behind one queue of whole transactions, one writer for all of them.

A transaction is a function of a `Tx`: it reads, decides and writes, and its result reaches the caller only
after its commit. Transactions of one turn of the loop, and those that queue up while one commits, share a commit;
one that raises undoes nothing but itself. A transaction may be run twice before it is committed, so it does
nothing but use its `Tx`.

Where the writer works: a commit that waits for the disk (`synchronous=FULL`) is made in a thread. Without
that wait a commit takes tens of microseconds, less than handing it to a thread and back, so the loop makes
it; when one is slow all the same, the thread takes over for a while. What does wait for the disk, the
checkpoints, happens in the reader's thread. Reads of a file have that thread and a connection of their own;
a database in memory has no threads at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from services.common.logs import error_text, get_logger
from services.dev_core.store.lane import Changes, Job, Lane, commit
from services.dev_core.store.opening import MEMORY, checkpoint, open_lanes
from services.dev_core.store.transaction import Move, StoreFailed, Tx

MAX_TRANSACTIONS_PER_COMMIT: Final = 128
"""Beyond it a commit takes nothing more, so that the first of a long queue is not kept waiting for the last."""
COMMITS_PER_CHECKPOINT: Final = 512
SLOW_COMMIT_S: Final = 0.25
SLOW_PAUSE_S: Final = 5.0
"""After a commit in the loop took longer than the former, the thread commits for the latter."""

T = TypeVar("T")


class Store:
    """The database.

    `on_events` is called in the loop, after a commit, with the sessions that got events and whether one of
    a session's is to be shown at once (see Tx.touch); `on_moved` with the sessions that moved (see Tx.move).
    """

    def __init__(self, writer: Lane, reader: Lane | None, lock: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        self._reader = reader
        self._lock = lock
        self._closed = False
        self._path = MEMORY
        self._commits = 0
        self.on_events: Callable[[dict[str, bool]], None] = lambda sessions: None
        self.on_moved: Callable[[list[tuple[str, Move]]], None] = lambda sessions: None

    @classmethod
    async def open(cls, path: str, *, full_sync: bool = False) -> Store:
        """Opens the file (made with its folder when missing) or, for `:memory:`, a database of this process.

        Raises StartFailed when the file can't be used or another process has it open.
        """
        return cls._opened(path, *await asyncio.to_thread(open_lanes, path, full_sync))

    @classmethod
    def _opened(cls, path: str, writer: Lane, reader: Lane | None, lock: Any) -> Store:
        store = cls(writer, reader, lock)
        store._path = path
        for lane in filter(None, (writer, reader)):
            if path == MEMORY:
                continue
            name = "core-db-write" if lane.writes else "core-db-read"
            lane.thread = threading.Thread(target=store._serve, args=(lane,), name=name, daemon=True)
            lane.thread.start()
        return store

    def submit(self, work: Callable[[Tx], T]) -> asyncio.Future[T]:
        """Queues a transaction: they are executed in the order of these calls.

        The future gets its result when it is durable, StoreFailed when the database refused it, or what
        `work` raised (and then nothing of it was written). Cancelling the future does not undo it.
        """
        return self._future_of(self._writer, work)

    def run(self, work: Callable[[Tx], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """`submit` for many small transactions: `done` is called in the loop with the result or the error."""
        self._queue(self._writer, work, done)

    async def write(self, work: Callable[[Tx], T]) -> T:
        """`submit` and wait."""
        return await self.submit(work)

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Runs a function that only reads, on everything that is committed."""
        return await self._future_of(self._reader or self._writer, work, reads=True)

    def _future_of(self, lane: Lane, work: Callable[[Tx], T], *, reads: bool = False) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._queue(lane, work, done, reads=reads)
        return future

    def _queue(
        self,
        lane: Lane,
        work: Callable[[Tx], Any],
        done: Callable[[Any, BaseException | None], None],
        *,
        reads: bool = False,
    ) -> None:
        if self._closed:
            done(None, StoreFailed("the database is closed"))
            return
        if not lane.new:
            self._loop.call_soon(self._hand_over, lane)
        lane.new.append(Job(work, done, reads))

    def _hand_over(self, lane: Lane) -> None:
        jobs, lane.new = lane.new, []
        if not jobs:
            return
        started = time.monotonic()
        if not lane.in_loop or lane.handed_over or started < lane.thread_until:
            lane.handed_over += 1
            lane.jobs.put(jobs)
            return
        for start in range(0, len(jobs), MAX_TRANSACTIONS_PER_COMMIT):
            batch = jobs[start : start + MAX_TRANSACTIONS_PER_COMMIT]
            self._deliver(lane, batch, commit(lane, batch))
        now = time.monotonic()
        if lane.thread is not None and now - started > SLOW_COMMIT_S:
            lane.thread_until = now + SLOW_PAUSE_S

    async def close(self) -> None:
        """Executes what is queued, then closes."""
        if self._closed:
            return
        self._closed = True
        for lane in filter(None, (self._reader, self._writer)):
            self._hand_over(lane)
            if lane.thread is None:
                lane.connection.close()
                continue
            lane.jobs.put(None)
            await asyncio.to_thread(lane.thread.join)
        if self._lock is not None:
            self._lock.close()
        await asyncio.sleep(0)

    def _checkpoint_when_due(self) -> None:
        self._commits += 1
        if self._commits % COMMITS_PER_CHECKPOINT or self._reader is None or self._closed:
            return
        self._queue(self._reader, lambda tx: checkpoint(self._path), lambda result, error: None)

    # In the lane's thread

    def _serve(self, lane: Lane) -> None:
        ended = False
        while not ended:
            batch: list[Job] = []
            taken = 0
            jobs = lane.jobs.get()
            while jobs is not None:
                batch += jobs
                taken += 1
                if len(batch) >= MAX_TRANSACTIONS_PER_COMMIT:
                    break
                try:
                    jobs = lane.jobs.get_nowait()
                except queue.Empty:
                    break
            else:
                ended = True
            if batch:
                changes = commit(lane, batch)
                # Fails only when the loop is closed, and then nobody waits for the results.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._deliver, lane, batch, changes, taken)
        if lane.writes:
            with contextlib.suppress(sqlite3.Error):
                lane.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        lane.connection.close()

    # In the loop

    def _deliver(self, lane: Lane, batch: list[Job], changes: Changes, taken: int = 0) -> None:
        lane.handed_over -= taken
        for job in batch:
            try:
                job.done(job.result if job.error is None else None, job.error)
            except Exception as error:  # noqa: BLE001  (the edge: one caller's fault is not the others')
                get_logger().error("transaction_not_delivered", error=error_text(error))
        if lane.writes:
            self._checkpoint_when_due()
        if changes.moved:
            self.on_moved(changes.moved)
        if changes.touched:
            self.on_events(changes.touched)
