"""Which direct calls were started, and what came of them (model-executor 13.7): a SQLite file.

Replicas of one host share it. A call is written before its first request to a provider and again after it,
so that no restart sends a started call a second time. The start is on the disk before the request leaves, so that
no power cut does either; for the outcome nobody waits so long: without it the call counts as lost. The spend caps
count in the same transactions.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from services.common.sqlite_thread import SqliteThread, Work
from services.model_executor.direct import caps as spending
from services.model_executor.direct.caps import NOTHING, Cap, Cost, Spender
from services.model_executor.direct.host_clock import HostClock, Moment
from services.model_executor.direct.instances import Instances
from services.model_executor.direct.rows import (
    BUSY_S,
    SCHEMA,
    VERSION,
    CallRow,
    Key,
    find,
    find_without_writing,
    sync_folder,
)

T = TypeVar("T")
KEEP_MS: Final = 30 * 60 * 1000
"""An outcome is kept for so long; at exactly this age it is gone."""
MAX_KEPT: Final = 10_000
MAX_KEPT_BYTES: Final = 256 * 1024 * 1024
FORGET_MS: Final = 7 * 24 * 3600 * 1000
"""A call whose process died is known as lost for so long."""
CALLS_PER_SWEEP: Final = 256
MAX_OWED: Final = 1_000
MAX_OWED_BYTES: Final = 64 * 1024 * 1024
"""What a full disk has refused is written when there is room again: so many entries, and so much text."""

Verdict = Literal["fresh", "kept", "lost", "elsewhere", "conflict", "stale", "capped"]


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
        self._file = SqliteThread("model-store", self._open)
        self._owed: deque[tuple[int, Work[None]]] = deque()
        self._owed_bytes = 0
        self._finished = 0

    def listens(self, address: str) -> None:
        """Where this process is reached, for the others that share the file. To be said before the first call."""
        self._address = address

    async def begin(self, wanted: Wanted) -> Begun:
        """Notes that a call starts, or says what is known of it. Raises StoreFailed.

        What is known is also said by a file that can't be written.
        """
        await self._pay()
        try:
            return await self._do(lambda db: self._begin(db, wanted))
        except StoreFailed:
            known = await self._look(wanted)
            if known is None:
                raise
            return known

    async def finish(self, key: Key, outcome: str, cost: Cost | None = None) -> None:
        """Notes what came of a call and what it cost. Raises StoreFailed; then it is noted later if it can be."""
        await self._do_or_owe(lambda db: self._finish(db, key, outcome, cost), len(outcome))

    async def forget(self, key: Key) -> None:
        """The call was cancelled: a re-send starts it anew. Raises StoreFailed, as `finish`."""
        await self._do_or_owe(lambda db: self._forget(db, key), 0)

    async def close(self) -> None:
        """Closes the file; a second time changes nothing."""
        await self._pay()
        await self._file.close()
        await asyncio.to_thread(self._instances.leave)

    async def _do(self, work: Work[T], *, durable: bool = True) -> T:
        try:
            return await self._file.do(work, durable=durable)
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"The model-executor's store {self._path} can't be used: {error}.") from None

    async def _do_or_owe(self, work: Work[None], size: int) -> None:
        try:
            await self._do(work, durable=False)
        except StoreFailed:
            self._owe(work, size)
            raise

    def _owe(self, work: Work[None], size: int) -> None:
        self._owed.append((size, work))
        self._owed_bytes += size
        while len(self._owed) > MAX_OWED or self._owed_bytes > MAX_OWED_BYTES:
            self._owed_bytes -= self._owed.popleft()[0]

    async def _pay(self) -> None:
        """Writes what could not be written before, up to the first that still can't."""
        while self._owed:
            size, work = self._owed.popleft()
            try:
                await self._do(work)
            except StoreFailed:
                self._owed.appendleft((size, work))
                return
            self._owed_bytes -= size

    async def _look(self, wanted: Wanted) -> Begun | None:
        """What is known of a call, without writing; None when it can't be said or the call is not known."""
        try:
            return await self._file.aside(lambda: self._known_without_writing(wanted))
        except (sqlite3.Error, OSError):
            return None

    # In the thread

    def _known_without_writing(self, wanted: Wanted) -> Begun | None:
        row = find_without_writing(self._path, wanted.key)
        return None if row is None else self._known(row, wanted, self._clock.now())

    def _open(self) -> sqlite3.Connection:
        if not self._path.parent.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_folder(self._path.parent.parent)
        self._instances.enter(self._address)
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            _prepare(db)
            self._instances.sweep()
            self._sweep(db, self._clock.now())
        except BaseException:
            db.close()
            raise
        return db

    # Transactions

    def _begin(self, db: sqlite3.Connection, wanted: Wanted) -> Begun:
        now = self._clock.now()
        row = find(db, wanted.key)
        known = None if row is None else self._known(row, wanted, now)
        if row is None or known is None:
            return self._fresh(db, wanted, now)
        if known.verdict not in ("conflict", "stale") and wanted.epoch > row.epoch:
            db.execute(
                "UPDATE calls SET epoch = ? WHERE tenant = ? AND session = ? AND effect = ?",
                (wanted.epoch, *wanted.key),
            )
        if known.verdict == "lost" and wanted.start:
            self._own(db, wanted.key)
        return known

    def _known(self, row: CallRow, wanted: Wanted, now: Moment) -> Begun | None:
        """What a row says of a call; None when it is too old to say anything."""
        if row.outcome is not None and now.since(row.at) >= KEEP_MS:
            return None
        if row.digest != wanted.digest:
            return Begun("conflict")
        if wanted.epoch < row.epoch:
            return Begun("stale")
        if row.outcome is not None:
            return Begun("kept", row.outcome)
        # A call of this very process that it doesn't know any more was given up by it.
        if row.instance == self.instance or not self._instances.lives(row.instance):
            return Begun("lost")
        return Begun("elsewhere", instance=row.instance, address=self._instances.address(row.instance))

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
    for statement in (SCHEMA + spending.SCHEMA).split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")
