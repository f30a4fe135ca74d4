"""A row of the store of started calls, and how it is read from a file that can't be written any more."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from services.model_executor.direct.host_clock import Moment

Key = tuple[str, str, str]
VERSION: Final = 1
BUSY_S: Final = 10.0
"""How long a transaction waits for those of other processes."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS calls (
  tenant TEXT NOT NULL, session TEXT NOT NULL, effect TEXT NOT NULL, digest BLOB NOT NULL,
  epoch INTEGER NOT NULL, instance TEXT NOT NULL, wall_ms INTEGER NOT NULL, boot TEXT NOT NULL,
  since_boot_ms INTEGER NOT NULL, size INTEGER NOT NULL, outcome TEXT, PRIMARY KEY (tenant, session, effect)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_by_time ON calls (wall_ms);
"""


class CallRow(NamedTuple):
    """What is known of a started call. `at`: its start, or its end once it has an outcome."""

    digest: bytes
    epoch: int
    instance: str
    outcome: str | None
    at: Moment


def find(db: sqlite3.Connection, key: Key) -> CallRow | None:
    """A call's row."""
    row = db.execute(
        "SELECT digest, epoch, instance, outcome, wall_ms, boot, since_boot_ms FROM calls "
        "WHERE tenant = ? AND session = ? AND effect = ?",
        key,
    ).fetchone()
    if row is None:
        return None
    digest, epoch, instance, outcome, *at = row
    return CallRow(digest, epoch, instance, outcome, Moment(*at))


def find_without_writing(path: Path, key: Key) -> CallRow | None:
    """A call's row from a file on a full disk. Raises sqlite3.Error.

    SQLite's index of a journal is a file, too, and may find no room. A process that is alone with the file
    can have it in memory, and where there are others the file is there.
    """
    if not path.exists():
        return None
    try:
        return _find_in(path, key, "NORMAL")
    except sqlite3.Error:
        return _find_in(path, key, "EXCLUSIVE")


def _find_in(path: Path, key: Key, locking: str) -> CallRow | None:
    db = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None
    )
    try:
        db.execute(f"PRAGMA locking_mode = {locking}")
        if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            return None
        return find(db, key)
    finally:
        db.close()


def sync_folder(path: Path) -> None:
    """Makes the entries of a folder durable. Raises OSError."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
