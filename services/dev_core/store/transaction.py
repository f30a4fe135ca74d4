"""What a transaction of the development core may use."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias

MAX_KNOWN_SEQS: Final = 10_000
"""Sessions whose newest event's seq is remembered; at one more all are forgotten and read anew."""

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
