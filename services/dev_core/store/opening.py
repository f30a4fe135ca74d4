"""Opens a database's file: its lock, its connections and their settings."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from services.common.process import StartFailed
from services.dev_core.store.lane import Lane
from services.dev_core.store.schema import SchemaUnusable, prepare

MEMORY: Final = ":memory:"
AUTOCHECKPOINT_PAGES: Final = 8192
"""Of 4 KiB: where the writer itself makes room in the journal, when the other checkpoints don't keep up."""
_JOURNAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CACHED_STATEMENTS: Final = 256
_CACHE_KIB: Final = 16 * 1024


def open_lanes(path: str, full_sync: bool) -> tuple[Lane, Lane | None, Any]:
    """The writer's lane, the reader's (none for a database in memory), and the lock of the file.

    Raises StartFailed when the file can't be used or another process has it open.
    """
    with contextlib.ExitStack() as undo:
        try:
            if path == MEMORY:
                writer = undo.enter_context(contextlib.closing(_connect(MEMORY)))
                writer.execute("PRAGMA journal_mode = MEMORY")
                writer.execute("PRAGMA synchronous = OFF")
                prepare(writer, MEMORY)
                undo.pop_all()
                return Lane(writer, True, in_loop=True), None, None
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
            raise StartFailed(f"{path} (WHIPPLETREE_CORE_DB) can't be opened: {error}") from error
        undo.pop_all()
        return Lane(writer, True, in_loop=not full_sync), Lane(reader, False), lock


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


def checkpoint(path: str) -> None:
    """Moves what is committed from the journal into the file, as far as nobody is in the way."""
    with contextlib.closing(_connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
