"""Which direct calls were started, and what came of them (model-executor 13.7): a SQLite file.

Replicas of one host share it. A call is written before its first request to a provider and again after it,
so that no restart sends a started call a second time. The spend caps count in the same transactions.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from services.model_executor.direct import caps as spending
from services.model_executor.direct.caps import NOTHING, Cap, Cost, Spender
from services.model_executor.direct.host_clock import HostClock, Moment
from services.model_executor.direct.instances import Instances

T = TypeVar("T")
KEEP_MS: Final = 30 * 60 * 1000
"""An outcome is kept for so long; at exactly this age it is gone."""
MAX_KEPT: Final = 10_000
MAX_KEPT_BYTES: Final = 256 * 1024 * 1024
FORGET_MS: Final = 7 * 24 * 3600 * 1000
"""A call whose process died is known as lost for so long."""
CALLS_PER_SWEEP: Final = 256
BUSY_S: Final = 10.0
"""How long a transaction waits for those of other processes."""
VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS calls (
  tenant TEXT NOT NULL, session TEXT NOT NULL, effect TEXT NOT NULL, digest BLOB NOT NULL,
  epoch INTEGER NOT NULL, instance TEXT NOT NULL, wall_ms INTEGER NOT NULL, boot TEXT NOT NULL,
  since_boot_ms INTEGER NOT NULL, size INTEGER NOT NULL, outcome TEXT, PRIMARY KEY (tenant, session, effect)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_by_time ON calls (wall_ms);
"""

Verdict = Literal["fresh", "kept", "lost", "elsewhere", "conflict", "stale", "capped"]
Key = tuple[str, str, str]


class StoreFailed(Exception):
    """The file can't be used."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What the store says of a call that wants to start.

    `outcome` comes with `kept`, `instance` and `address` with `elsewhere`, `reason` with `capped`.
    """

    verdict: Verdict
    outcome: str = ""
    instance: str = ""
    address: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that wants to start. `estimate` is what its prompt costs.

    With `must_be_known`, a call that is not in the file was started elsewhere: it is lost. Without `start`
    nothing is written for one that may start.
    """

    key: Key
    digest: bytes
    epoch: int
    turn: str = ""
    estimate: Cost = NOTHING
    must_be_known: bool = False
    start: bool = True


class CallStore:
    """The file, in one thread of its own. `instance` names this process in it."""

    def __init__(
        self,
        path: Path,
        *,
        caps: Sequence[Cap] = (),
        instance: str | None = None,
        clock: HostClock | None = None,
    ) -> None:
        self._path = path
        self._caps = tuple(caps)
        self._clock = clock or HostClock()
        self.instance = instance or secrets.token_hex(8)
        self._instances = Instances(path, self.instance)
        self._address = ""
        self._thread = ThreadPoolExecutor(1, "model-store")
        self._db: sqlite3.Connection | None = None
        self._finished = 0
        self._closed = False

    def listens(self, address: str) -> None:
        """Where this process is reached, for the others that share the file. To be said before the first call."""
        self._address = address

    async def begin(self, wanted: Wanted) -> Begun:
        """Notes that a call starts, or says what is known of it. Raises StoreFailed."""
        return await self._do(lambda db: self._begin(db, wanted))

    async def finish(self, key: Key, outcome: str, cost: Cost | None = None) -> None:
        """Notes what came of a call and what it cost. Raises StoreFailed."""
        await self._do(lambda db: self._finish(db, key, outcome, cost))

    async def forget(self, key: Key) -> None:
        """The call was cancelled: a re-send starts it anew. Raises StoreFailed."""
        await self._do(lambda db: self._forget(db, key))

    async def close(self) -> None:
        """Closes the file; a second time changes nothing."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    # In the thread

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, work)
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"The model-executor's store {self._path} can't be used: {error}.") from None

    def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db if self._db is not None else self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            result = work(db)
            db.execute("COMMIT")
        except BaseException:
            # A full disk makes SQLite end the transaction by itself.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return result

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._instances.enter(self._address)
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            _prepare(db)
            self._instances.sweep()
            self._sweep(db, self._clock.now())
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._instances.leave()

    # Transactions

    def _begin(self, db: sqlite3.Connection, wanted: Wanted) -> Begun:
        now = self._clock.now()
        row = db.execute(
            "SELECT digest, epoch, instance, outcome, wall_ms, boot, since_boot_ms FROM calls "
            "WHERE tenant = ? AND session = ? AND effect = ?",
            wanted.key,
        ).fetchone()
        if row is not None and row[3] is not None and now.since(Moment(*row[4:])) >= KEEP_MS:
            row = None
        if row is None:
            return self._fresh(db, wanted, now)
        if row[0] != wanted.digest:
            return Begun("conflict")
        if wanted.epoch < row[1]:
            return Begun("stale")
        if wanted.epoch > row[1]:
            db.execute(
                "UPDATE calls SET epoch = ? WHERE tenant = ? AND session = ? AND effect = ?",
                (wanted.epoch, *wanted.key),
            )
        if row[3] is not None:
            return Begun("kept", row[3])
        instance = row[2]
        # A call of this very process that it doesn't know any more was given up by it.
        if instance == self.instance or not self._instances.lives(instance):
            if wanted.start:
                self._own(db, wanted.key)
            return Begun("lost")
        return Begun("elsewhere", instance=instance, address=self._instances.address(instance))

    def _fresh(self, db: sqlite3.Connection, wanted: Wanted, now: Moment) -> Begun:
        if wanted.must_be_known:
            if wanted.start:
                self._insert(db, wanted, now)
            return Begun("lost")
        if self._caps:
            spender = Spender(*wanted.key, wanted.turn)
            reason = spending.refusal(db, self._caps, spender, now, self._instances.lives)
            if reason is not None:
                return Begun("capped", reason=reason)
            if wanted.start:
                spending.reserve(db, spender, self.instance, wanted.estimate)
        if wanted.start:
            self._insert(db, wanted, now)
        return Begun("fresh")

    def _own(self, db: sqlite3.Connection, key: Key) -> None:
        """Whoever finds a lost call writes its outcome."""
        db.execute(
            "UPDATE calls SET instance = ? WHERE tenant = ? AND session = ? AND effect = ?",
            (self.instance, *key),
        )

    def _insert(self, db: sqlite3.Connection, wanted: Wanted, now: Moment) -> None:
        db.execute(
            "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, NULL)",
            (*wanted.key, wanted.digest, wanted.epoch, self.instance, *now),
        )

    def _finish(self, db: sqlite3.Connection, key: Key, outcome: str, cost: Cost | None) -> None:
        now = self._clock.now()
        db.execute(
            "UPDATE calls SET outcome = ?, size = ?, wall_ms = ?, boot = ?, since_boot_ms = ? "
            "WHERE tenant = ? AND session = ? AND effect = ? AND instance = ? AND outcome IS NULL",
            (outcome, len(outcome), *now, *key, self.instance),
        )
        if self._caps:
            spending.settle(db, key, self.instance, cost, now)
        self._finished += 1
        if self._finished % CALLS_PER_SWEEP == 0:
            self._sweep(db, now)

    def _forget(self, db: sqlite3.Connection, key: Key) -> None:
        where = "tenant = ? AND session = ? AND effect = ?"
        # Never another process's: a call that is cancelled here may have been found running there.
        db.execute(
            f"DELETE FROM calls WHERE {where} AND instance = ? AND outcome IS NULL", (*key, self.instance)
        )
        if self._caps:
            spending.settle(db, key, self.instance, None, self._clock.now())

    def _sweep(self, db: sqlite3.Connection, now: Moment) -> None:
        """Drops outcomes that are too old or too many, and lost calls of long ago."""
        old = "((boot = ? AND ? - since_boot_ms >= ?) OR (boot != ? AND ? - wall_ms >= ?))"
        for state, age in (("outcome IS NOT NULL", KEEP_MS), ("outcome IS NULL", FORGET_MS)):
            db.execute(
                f"DELETE FROM calls WHERE {state} AND {old}",
                (now.boot, now.since_boot_ms, age, now.boot, now.wall_ms, age),
            )
        db.execute(
            "DELETE FROM calls WHERE outcome IS NOT NULL AND (tenant, session, effect) IN ("
            "SELECT tenant, session, effect FROM (SELECT tenant, session, effect, "
            "row_number() OVER newest AS place, sum(size) OVER newest AS bytes "
            "FROM calls WHERE outcome IS NOT NULL WINDOW newest AS (ORDER BY wall_ms DESC)) "
            "WHERE place > ? OR bytes > ?)",
            (MAX_KEPT, MAX_KEPT_BYTES),
        )
        spending.sweep(db, now)


def _prepare(db: sqlite3.Connection) -> None:
    """Makes the tables. Raises sqlite3.Error for the file of a newer program."""
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, this program knows {VERSION}")
    if version == 0:
        # Before the first release the table had other columns.
        db.execute("DROP TABLE IF EXISTS calls")
    for statement in (_SCHEMA + spending.SCHEMA).split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")
