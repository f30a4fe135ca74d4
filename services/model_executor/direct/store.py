"""Which direct calls were started, and what came of them (model-executor 13.7): a SQLite file.

Replicas of one host share it. A call is written before its first request to a provider and again after it,
so that no restart sends a started call a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

T = TypeVar("T")
KEEP_MS: Final = 30 * 60 * 1000
"""An outcome is kept for so long; at exactly this age it is gone."""
FORGET_MS: Final = 7 * 24 * 3600 * 1000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS calls (
  tenant TEXT NOT NULL, session TEXT NOT NULL, effect TEXT NOT NULL, digest BLOB NOT NULL,
  epoch INTEGER NOT NULL, instance TEXT NOT NULL, started_ms INTEGER NOT NULL,
  outcome TEXT, ended_ms INTEGER, PRIMARY KEY (tenant, session, effect)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_by_start ON calls (started_ms);
"""

Verdict = Literal["fresh", "kept", "lost", "elsewhere", "conflict", "stale"]
Key = tuple[str, str, str]


class StoreFailed(Exception):
    """The file can't be used."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What the store says of a call that wants to start; `outcome` with `kept`."""

    verdict: Verdict
    outcome: str = ""


class CallStore:
    """The file, in one thread of its own. `now_ms` is the wall clock, for tests."""

    def __init__(self, path: Path, now_ms: Callable[[], int] | None = None) -> None:
        self._path = path
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self.instance = secrets.token_hex(8)
        self._thread = ThreadPoolExecutor(1, "model-store")
        self._db: sqlite3.Connection | None = None
        self._lock = -1
        self._closed = False

    async def begin(self, key: Key, digest: bytes, epoch: int, *, must_be_known: bool = False) -> Begun:
        """Notes that a call starts, or says what is known of it. Raises StoreFailed.

        With `must_be_known` a call that is not in the file was started elsewhere: it is lost.
        """
        return await self._do(lambda db: self._begin(db, key, digest, epoch, must_be_known))

    async def finish(self, key: Key, outcome: str) -> None:
        """Notes what came of it. Raises StoreFailed."""
        await self._do(
            lambda db: db.execute(
                "UPDATE calls SET outcome = ?, ended_ms = ? WHERE tenant = ? AND session = ? AND effect = ?",
                (outcome, self._now_ms(), *key),
            )
        )

    async def forget(self, key: Key) -> None:
        """The call was cancelled: a re-send starts it anew. Raises StoreFailed."""
        await self._do(
            lambda db: db.execute(
                "DELETE FROM calls WHERE tenant = ? AND session = ? AND effect = ? AND outcome IS NULL", key
            )
        )

    async def close(self) -> None:
        """Closes the file; a second time changes nothing."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, work)
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"The model-executor's store can't be used: {error}.") from None

    def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db if self._db is not None else self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            result = work(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        return result

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Whoever holds the lock of an instance's file lives.
        self._lock = os.open(self._lock_path(self.instance), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        db = sqlite3.connect(self._path, timeout=10, isolation_level=None, check_same_thread=False)
        self._path.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_SCHEMA)
        db.execute("DELETE FROM calls WHERE started_ms < ?", (self._now_ms() - FORGET_MS,))
        self._db = db
        return db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._lock_path(self.instance))
            os.close(self._lock)
            self._lock = -1

    def _lock_path(self, instance: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{instance}.lock")

    def _begin(
        self, db: sqlite3.Connection, key: Key, digest: bytes, epoch: int, must_be_known: bool
    ) -> Begun:
        now = self._now_ms()
        row = db.execute(
            "SELECT digest, epoch, instance, outcome, ended_ms FROM calls "
            "WHERE tenant = ? AND session = ? AND effect = ?",
            key,
        ).fetchone()
        if row is not None and row[4] is not None and now - row[4] >= KEEP_MS:
            row = None
        if row is None:
            db.execute(
                "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                (*key, digest, epoch, self.instance, now),
            )
            return Begun("lost" if must_be_known else "fresh")
        if row[0] != digest:
            return Begun("conflict")
        if epoch < row[1]:
            return Begun("stale")
        if row[3] is not None:
            return Begun("kept", row[3])
        return Begun("elsewhere" if self._lives(row[2]) else "lost")

    def _lives(self, instance: str) -> bool:
        if instance == self.instance:
            return False
        try:
            lock = os.open(self._lock_path(instance), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        with contextlib.suppress(OSError):
            os.unlink(self._lock_path(instance))
        return False
