"""Which tool calls were started, and what came of them (mcp-pool 9.4): a SQLite file.

A call is written, to the disk, before its server is called, and its answer after. What was started and has no
answer stays so for ever: nobody knows whether it was carried out, and it is never made again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from services.common.sqlite_thread import SqliteThread, Work

T = TypeVar("T")
KEEP_MS: Final = 24 * 3600 * 1000
"""An answer is kept for so long."""
MOST_BYTES: Final = 1024 * 1024 * 1024
"""Answers that are kept, together; the oldest go first, and then count as unknown."""
_APPLICATION_ID: Final = 0x57485447  # "WHTG"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS calls (
  key TEXT PRIMARY KEY, session TEXT NOT NULL, epoch INTEGER NOT NULL, hash BLOB NOT NULL,
  started_ms INTEGER NOT NULL, answer TEXT, size INTEGER NOT NULL DEFAULT 0, settled_ms INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_settled ON calls (settled_ms) WHERE settled_ms IS NOT NULL;
"""

Verdict = Literal["fresh", "answered", "open", "conflict", "stale"]


class RowsFailed(Exception):
    """The file can't be used; nothing of what was asked was done."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What the file says of a call that wants to start; `answer` with `answered`."""

    verdict: Verdict
    answer: str = ""


class CallRows:
    """The file, in one thread of its own. `now_ms` is the wall clock, for tests."""

    def __init__(self, path: Path, now_ms: Callable[[], int] | None = None) -> None:
        self._path = path
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._file = SqliteThread("tool-gate-rows", self._open)

    async def open(self) -> None:
        """Opens or makes the file, so that a fault shows at start. Raises RowsFailed."""
        await self._do(lambda db: None)

    async def begin(self, key: str, session: str, epoch: int, digest: bytes) -> Begun:
        """Notes that a call starts, or says what is known of it. Raises RowsFailed."""
        return await self._do(lambda db: self._begin(db, key, session, epoch, digest))

    async def settle(self, key: str, answer: str) -> None:
        """Notes a call's answer. Raises RowsFailed."""
        await self._do(
            lambda db: db.execute(
                "UPDATE calls SET answer = ?, size = ?, settled_ms = ? WHERE key = ?",
                (answer, len(answer), self._now_ms(), key),
            )
        )

    async def forget_old(self) -> int:
        """Drops answers that were kept long enough; returns how many. Raises RowsFailed.

        What goes before its time, because there is too much, stays as a call without an answer.
        """
        return await self._do(self._forget_old)

    async def close(self) -> None:
        """Closes the file; a second time changes nothing."""
        await self._file.close()

    async def _do(self, work: Work[T]) -> T:
        try:
            return await self._file.do(work)
        except (sqlite3.Error, OSError) as error:
            raise RowsFailed(f"{self._path} can't be used: {error}.") from None

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        db = sqlite3.connect(self._path, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            self._path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            application = db.execute("PRAGMA application_id").fetchone()[0]
            if application not in (0, _APPLICATION_ID):
                raise OSError("it is not a Tool Gate's file")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        except BaseException:
            db.close()
            raise
        return db

    def _begin(self, db: sqlite3.Connection, key: str, session: str, epoch: int, digest: bytes) -> Begun:
        row = db.execute("SELECT session, epoch, hash, answer FROM calls WHERE key = ?", (key,)).fetchone()
        if row is None:
            db.execute(
                "INSERT INTO calls (key, session, epoch, hash, started_ms) VALUES (?, ?, ?, ?, ?)",
                (key, session, epoch, digest, self._now_ms()),
            )
            return Begun("fresh")
        if row[0] != session or row[2] != digest:
            return Begun("conflict")
        if epoch < row[1]:
            return Begun("stale")
        if epoch > row[1]:
            db.execute("UPDATE calls SET epoch = ? WHERE key = ?", (epoch, key))
        return Begun("open") if row[3] is None else Begun("answered", row[3])

    def _forget_old(self, db: sqlite3.Connection) -> int:
        gone = db.execute("DELETE FROM calls WHERE settled_ms <= ?", (self._now_ms() - KEEP_MS,)).rowcount
        over = db.execute("SELECT coalesce(sum(size), 0) FROM calls WHERE settled_ms IS NOT NULL").fetchone()[
            0
        ]
        if over <= MOST_BYTES:
            return int(gone)
        for key, size in db.execute(
            "SELECT key, size FROM calls WHERE settled_ms IS NOT NULL ORDER BY settled_ms"
        ).fetchall():
            db.execute("UPDATE calls SET answer = NULL, size = 0, settled_ms = NULL WHERE key = ?", (key,))
            over, gone = over - size, gone + 1
            if over <= MOST_BYTES:
                break
        return int(gone)
