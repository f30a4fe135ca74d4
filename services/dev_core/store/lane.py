"""One connection with its queue, and how a batch of its transactions is committed."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.dev_core.store.transaction import Move, StoreFailed, Tx


@dataclass(slots=True)
class Changes:
    """What the transactions of a commit tell the loop."""

    touched: dict[str, bool] = field(default_factory=dict)
    moved: list[tuple[str, Move]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Job:
    """A transaction, whom to tell its end, and the end once it is known."""

    work: Callable[[Tx], Any]
    done: Callable[[Any, BaseException | None], None]
    reads: bool = False
    """It writes nothing."""
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Lane:
    """A connection with its queue, and the thread that works it off where there is one."""

    connection: sqlite3.Connection
    writes: bool
    in_loop: bool = False
    """Its transactions may run in the loop."""
    thread_until: float = 0.0
    """On the monotonic clock: until then they run in the thread all the same."""
    handed_over: int = 0
    """Batches that the thread has and has not delivered."""
    jobs: queue.SimpleQueue[list[Job] | None] = field(default_factory=queue.SimpleQueue)
    new: list[Job] = field(default_factory=list)
    """Of this turn of the loop, not handed over yet."""
    thread: threading.Thread | None = None
    seqs: dict[str, int] = field(default_factory=dict)
    """What its transactions know of the newest events (see Tx); forgotten when one of them fails."""


def commit(lane: Lane, batch: list[Job]) -> Changes:
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
        return Changes()
    return changes


def _run_all(lane: Lane, batch: list[Job], *, savepoints: bool) -> Changes | None:
    """Runs the jobs, in a transaction that is left open if they write; the sessions that got events or moved.

    A savepoint costs as much as a small write, and a job that refuses mostly has written nothing. So the
    first attempt goes without: None means that a job failed after it had written, and all is undone.
    """
    connection = lane.connection
    made = Changes()
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
