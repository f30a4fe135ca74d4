"""Compute records of workspaces: `records.json` (sandbox-manager 4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from protocol.jsjson import JsonError, JsonValue, dumps_bytes, loads
from services.common.logs import error_text, get_logger
from services.sandbox_manager.diskfile import (
    FULL_DISK,
    TEMPORARY_FILES,
    DiskFile,
    UnreadableFile,
    replace_file,
)

State = Literal["creating", "running", "stopped"]

FILE_NAME: Final = "records.json"
_BAD_PREFIX: Final = "records.json.bad-"
_STATES: Final = frozenset({"creating", "running", "stopped"})
_MEMBERS: Final = ("key", "sessionId", "sandboxId", "backend", "image", "state", "createdAt", "updatedAt")
_LONGEST_ID: Final = 512


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one workspace's compute. Times are ISO 8601, UTC, milliseconds, `Z`."""

    key: str
    session_id: str
    sandbox_id: str | None
    backend: str
    image: str
    state: State
    created_at: str
    updated_at: str

    def document(self) -> dict[str, JsonValue]:
        """The record as core and the file have it."""
        document: dict[str, JsonValue] = {"key": self.key, "sessionId": self.session_id}
        if self.sandbox_id is not None:
            document["sandboxId"] = self.sandbox_id
        document["backend"] = self.backend
        document["image"] = self.image
        document["state"] = self.state
        document["createdAt"] = self.created_at
        document["updatedAt"] = self.updated_at
        return document


class RecordsUnreadable(Exception):
    """records.json is there but can't be read. The text names the file."""


class RecordStore:
    """All records of a root, in the order in which they were first written.

    Every change rewrites the file, one write after the other; a change is complete when a write that holds
    it is on the disk. `clock` gives the time as records have it.
    """

    def __init__(self, path: Path, records: Iterable[Record], clock: Callable[[], str]) -> None:
        self._file = DiskFile(path)
        self._records = {record.key: record for record in records}
        self._clock = clock
        self._lock = asyncio.Lock()
        self._changes = 0
        self._written = 0
        self._unrecorded: frozenset[str] = frozenset()

    def expect_folders(self, keys: Iterable[str]) -> None:
        """Folders found after the file was lost: what has no record here counts as having had one."""
        self._unrecorded = frozenset(keys) - self._records.keys()

    def get(self, key: str) -> Record | None:
        """The record of a workspace."""
        return self._records.get(key)

    def existed(self, key: str) -> bool:
        """A record exists, or did before the file was lost."""
        return key in self._records or key in self._unrecorded

    def all(self) -> list[Record]:
        """Every record."""
        return list(self._records.values())

    async def put(
        self,
        key: str,
        *,
        session_id: str,
        sandbox_id: str | None,
        backend: str,
        state: State,
        image: str | None = None,
    ) -> Record:
        """Writes a workspace's record; `image` None keeps the one it had. Raises OSError."""
        now = self._clock()
        old = self._records.get(key)
        record = Record(
            key=key,
            session_id=session_id,
            sandbox_id=sandbox_id,
            backend=backend,
            image=image if image is not None else old.image if old is not None else "",
            state=state,
            created_at=old.created_at if old is not None else now,
            updated_at=now,
        )
        await self._put(record)
        return record

    async def put_stopped(self, record: Record) -> None:
        """Changes the state of a record to `stopped` and nothing else. Raises OSError."""
        await self._put(replace(record, state="stopped"))

    async def delete(self, key: str) -> None:
        """Forgets a workspace. Raises OSError; without a record nothing is written."""
        self._unrecorded -= {key}
        if self._records.pop(key, None) is not None:
            await self._write()

    async def _put(self, record: Record) -> None:
        self._records[record.key] = record
        self._unrecorded -= {record.key}
        await self._write()

    async def _write(self) -> None:
        self._changes += 1
        change = self._changes
        async with self._lock:
            if self._written >= change:
                return
            included = self._changes
            await self._file.write(_render(self._records.values()))
            self._written = included


async def load_records(path: Path, clock: Callable[[], str], stamp: Callable[[], str]) -> RecordStore:
    """Reads records.json and keeps a copy of it as records.json.prev.

    A file that can't be understood is kept as `records.json.bad-<stamp>`, and the copy of the last start
    takes its place. As long as a kept one is there, folders count, too (`expect_folders`). Raises
    RecordsUnreadable.
    """
    return await asyncio.to_thread(_load, path, clock, stamp)


def _load(path: Path, clock: Callable[[], str], stamp: Callable[[], str]) -> RecordStore:
    for left in path.parent.glob(TEMPORARY_FILES):  # of a process that was killed
        left.unlink(missing_ok=True)
    previous = path.with_name(f"{FILE_NAME}.prev")
    try:
        data = DiskFile(path).read()
    except UnreadableFile as error:
        raise RecordsUnreadable(f"{path} can't be read: {error}.") from error
    if data is None:
        return _store(path, (), clock)
    records = _understand(data)
    if records is not None:
        _replace(previous, data)
        return _store(path, records, clock)
    aside = path.with_name(f"{_BAD_PREFIX}{stamp()}")
    # A second name, then a new file under the first one: at no moment is there none.
    aside.unlink(missing_ok=True)
    os.link(path, aside)
    records = _previous(previous)
    _replace(path, _render(records))
    get_logger().warning(
        "sandbox_records_malformed",
        file=str(path),
        keptAs=aside.name,
        records=len(records),
        error="the file is no list of records; the one of the last start and the folders are used",
    )
    return _store(path, records, clock)


def _store(path: Path, records: Iterable[Record], clock: Callable[[], str]) -> RecordStore:
    store = RecordStore(path, records, clock)
    if any(path.parent.glob(f"{_BAD_PREFIX}*")):
        store.expect_folders(_folders(path.parent))
    return store


def _replace(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        # The way to make room is to remove workspaces, which takes a manager that runs.
        get_logger().warning("sandbox_records_not_written", file=str(path), error=error_text(error))


def _previous(path: Path) -> list[Record]:
    try:
        data = DiskFile(path).read()
    except UnreadableFile:
        return []
    return (_understand(data) or []) if data is not None else []


def _folders(root: Path) -> list[str]:
    return [entry.name for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]


def _render(records: Iterable[Record]) -> bytes:
    return dumps_bytes({"records": [record.document() for record in records]})


def _understand(data: bytes) -> list[Record] | None:
    try:
        document = loads(data)
    except JsonError:
        return None
    if not isinstance(document, dict) or document.keys() != {"records"}:
        return None
    listed = document["records"]
    if not isinstance(listed, list):
        return None
    # The last of several records of one key wins, in the place of the first.
    records: dict[str, Record] = {}
    for value in listed:
        record = _record(value)
        if record is None:
            return None
        records[record.key] = record
    return list(records.values())


def _record(value: JsonValue) -> Record | None:
    if not isinstance(value, dict) or not value.keys() <= set(_MEMBERS):
        return None
    if not all(isinstance(value.get(name), str) for name in _MEMBERS if name != "sandboxId"):
        return None
    members = value
    ids = [members["key"], members["sessionId"]] + ([members["sandboxId"]] if "sandboxId" in members else [])
    if not all(isinstance(identity, str) and 1 <= len(identity) <= _LONGEST_ID for identity in ids):
        return None
    if members["state"] not in _STATES:
        return None
    return Record(
        key=members["key"],
        session_id=members["sessionId"],
        sandbox_id=members.get("sandboxId"),
        backend=members["backend"],
        image=members["image"],
        state=members["state"],
        created_at=members["createdAt"],
        updated_at=members["updatedAt"],
    )
