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
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from services.common.logs import error_text, get_logger
from services.common.process import StartFailed
from services.dev_core.store.schema import SchemaUnusable, prepare

MEMORY: Final = ":memory:"
MAX_TRANSACTIONS_PER_COMMIT: Final = 128
"""Beyond it a commit takes nothing more, so that the first of a long queue is not kept waiting for the last."""
COMMITS_PER_CHECKPOINT: Final = 512
AUTOCHECKPOINT_PAGES: Final = 8192
"""Of 4 KiB: where the writer itself makes room in the journal, when the other checkpoints don't keep up."""
SLOW_COMMIT_S: Final = 0.25
SLOW_PAUSE_S: Final = 5.0
"""After a commit in the loop took longer than the former, the thread commits for the latter."""
MAX_KNOWN_SEQS: Final = 10_000
"""Sessions whose newest event's seq is remembered; at one more all are forgotten and read anew."""
_JOURNAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CACHED_STATEMENTS: Final = 256
_CACHE_KIB: Final = 16 * 1024

T = TypeVar("T")
Row = tuple[Any, ...]
Move: TypeAlias = Literal["runnable", "cancelled", "links"]


class StoreFailed(Exception):
    """The database refused a transaction: nothing of it was written."""


class Tx:
    """What a transaction may use: statements, and the lists of sessions that got events and that moved.

    `seqs` holds the seq of the newest event of sessions: nobody else writes the database, so it is read once.
    """

    __slots__ = ("_connection", "_seqs", "moved", "touched")

    def __init__(self, connection: sqlite3.Connection, seqs: dict[str, int] | None = None) -> None:
        self._connection = connection
        self._seqs = {} if seqs is None else seqs
        self.touched: dict[str, bool] = {}
        self.moved: list[tuple[str, Move]] = []

    def next_seq(self, session_id: str) -> int:
        """The seq of an event that is to be written now."""
        seq = self._seqs.get(session_id)
        if seq is None:
            row = self.one("SELECT max(seq) FROM events WHERE session_id = ?", (session_id,))
            seq = 0 if row is None or row[0] is None else int(row[0])
            if len(self._seqs) >= MAX_KNOWN_SEQS:
                self._seqs.clear()
        self._seqs[session_id] = seq + 1
        return seq + 1

    def touch(self, session_id: str, *, at_once: bool) -> None:
        """The session got an event; `at_once`: whoever watches the session waits for it."""
        self.touched[session_id] = at_once or self.touched.get(session_id, False)

    def move(self, session_id: str, how: Move) -> None:
        """Another session than the transaction's own has something to run now, its turn was cancelled, or linked
        turns may begin for it."""
        self.moved.append((session_id, how))

    def run(self, sql: str, parameters: Iterable[Any] = ()) -> int:
        """Executes one statement and gives the number of rows it changed."""
        return self._connection.execute(sql, tuple(parameters)).rowcount

    def one(self, sql: str, parameters: Iterable[Any] = ()) -> Row | None:
        """The first row, or None."""
        row: Row | None = self._connection.execute(sql, tuple(parameters)).fetchone()
        return row

    def each(self, sql: str, parameters: Iterable[Any] = ()) -> Iterator[Row]:
        """The rows, read while they are taken."""
        return iter(self._connection.execute(sql, tuple(parameters)))

    def all(self, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
        """Every row."""
        return self._connection.execute(sql, tuple(parameters)).fetchall()


@dataclass(slots=True)
class _Changes:
    """What the transactions of a commit tell the loop."""

    touched: dict[str, bool] = field(default_factory=dict)
    moved: list[tuple[str, Move]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[Tx], Any]
    done: Callable[[Any, BaseException | None], None]
    reads: bool = False
    """It writes nothing."""
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Lane:
    """One thread with its connection and its queue."""

    connection: sqlite3.Connection
    writes: bool
    in_loop: bool = False
    """Its transactions may run in the loop."""
    thread_until: float = 0.0
    """On the monotonic clock: until then they run in the thread all the same."""
    handed_over: int = 0
    """Batches that the thread has and has not delivered."""
    jobs: queue.SimpleQueue[list[_Job] | None] = field(default_factory=queue.SimpleQueue)
    new: list[_Job] = field(default_factory=list)
    """Of this turn of the loop, not handed over yet."""
    thread: threading.Thread | None = None
    seqs: dict[str, int] = field(default_factory=dict)
    """What its transactions know of the newest events (see Tx); forgotten when one of them fails."""


class Store:
    """The database.

    `on_events` is called in the loop, after a commit, with the sessions that got events and whether one of
    a session's is to be shown at once (see Tx.touch); `on_moved` with the sessions that moved (see Tx.move).
    """

    def __init__(self, writer: _Lane, reader: _Lane | None, lock: Any) -> None:
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
        return cls._opened(path, *await asyncio.to_thread(_open_lanes, path, full_sync))

    @classmethod
    def _opened(cls, path: str, writer: _Lane, reader: _Lane | None, lock: Any) -> Store:
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

    def _future_of(self, lane: _Lane, work: Callable[[Tx], T], *, reads: bool = False) -> asyncio.Future[T]:
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
        lane: _Lane,
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
        lane.new.append(_Job(work, done, reads))

    def _hand_over(self, lane: _Lane) -> None:
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
            self._deliver(lane, batch, _commit(lane, batch))
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
        self._queue(self._reader, lambda tx: _checkpoint(self._path), lambda result, error: None)

    # In the lane's thread

    def _serve(self, lane: _Lane) -> None:
        ended = False
        while not ended:
            batch: list[_Job] = []
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
                changes = _commit(lane, batch)
                # Fails only when the loop is closed, and then nobody waits for the results.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._deliver, lane, batch, changes, taken)
        if lane.writes:
            with contextlib.suppress(sqlite3.Error):
                lane.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        lane.connection.close()

    # In the loop

    def _deliver(self, lane: _Lane, batch: list[_Job], changes: _Changes, taken: int = 0) -> None:
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


def _open_lanes(path: str, full_sync: bool) -> tuple[_Lane, _Lane | None, Any]:
    with contextlib.ExitStack() as undo:
        try:
            if path == MEMORY:
                writer = undo.enter_context(contextlib.closing(_connect(MEMORY)))
                writer.execute("PRAGMA journal_mode = MEMORY")
                writer.execute("PRAGMA synchronous = OFF")
                prepare(writer, MEMORY)
                undo.pop_all()
                return _Lane(writer, True, in_loop=True), None, None
            Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = undo.enter_context(_lock(path))
            # Conversations are nobody else's business; SQLite gives its other files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            writer = undo.enter_context(contextlib.closing(_connect(path)))
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute(f"PRAGMA synchronous = {'FULL' if full_sync else 'NORMAL'}")
            writer.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}")
            writer.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT_BYTES}")
            prepare(writer, path)
            reader = undo.enter_context(contextlib.closing(_connect(path)))
            reader.execute("PRAGMA query_only = 1")
        except SchemaUnusable as error:
            raise StartFailed(str(error)) from error
        except (OSError, sqlite3.Error) as error:
            raise StartFailed(f"{path} can't be opened: {error}") from error
        undo.pop_all()
        return _Lane(writer, True, in_loop=not full_sync), _Lane(reader, False), lock


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=_CACHED_STATEMENTS
    )
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def _lock(path: str) -> Any:
    lock = Path(f"{path}.lock").open("w", encoding="ascii")  # noqa: SIM115  (held until the store closes)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StartFailed(
            f"{path} is in use by another development core: stop it, or name another file in "
            "WHIPPLETREE_CORE_DB."
        ) from None
    return lock


def _checkpoint(path: str) -> None:
    """Moves what is committed from the journal into the file, as far as nobody is in the way."""
    with contextlib.closing(_connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _commit(lane: _Lane, batch: list[_Job]) -> _Changes:
    """Runs the jobs and commits once; every job ends with a result or an error."""
    connection = lane.connection
    try:
        changes = _run_all(lane, batch, savepoints=False)
        if changes is None:
            changes = _run_all(lane, batch, savepoints=True)
        assert changes is not None
        if connection.in_transaction:
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        lane.seqs.clear()
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        for job in batch:
            if job.error is None:
                job.result, job.error = None, StoreFailed(f"the database refused a write: {error}")
        return _Changes()
    return changes


def _run_all(lane: _Lane, batch: list[_Job], *, savepoints: bool) -> _Changes | None:
    """Runs the jobs, in a transaction that is left open if they write; the sessions that got events or moved.

    A savepoint costs as much as a small write, and a job that refuses mostly has written nothing. So the
    first attempt goes without: None means that a job failed after it had written, and all is undone.
    """
    connection = lane.connection
    made = _Changes()
    # Reads alone need no transaction where nobody else writes: they see one state as it is.
    begun = not (lane.writes and all(job.reads for job in batch))
    if begun:
        connection.execute("BEGIN IMMEDIATE" if lane.writes else "BEGIN")
    for job in batch:
        tx = Tx(connection, lane.seqs)
        changes = connection.total_changes
        if savepoints:
            connection.execute("SAVEPOINT job")
        try:
            job.result, job.error = job.work(tx), None
        except Exception as error:  # The transaction's own error: its caller gets it.
            lane.seqs.clear()
            job.error = StoreFailed(str(error)) if isinstance(error, sqlite3.Error) else error
            if begun and not connection.in_transaction:
                # A full disk and the like make SQLite undo everything, not just the statement.
                raise sqlite3.OperationalError(str(error)) from error
            if savepoints:
                connection.execute("ROLLBACK TO job")
            elif connection.total_changes != changes:
                connection.execute("ROLLBACK")
                return None
        else:
            for session_id, at_once in tx.touched.items():
                made.touched[session_id] = at_once or made.touched.get(session_id, False)
            made.moved += tx.moved
        if savepoints:
            connection.execute("RELEASE job")
    return made
