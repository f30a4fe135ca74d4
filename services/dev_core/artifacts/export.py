"""The end of a turn: what lies in /workspace/outputs becomes artifacts (sandbox-manager 11.3).

It happens while the harness waits for the answer to `turn.completed`. What can't be exported is noted in the
log and keeps nothing from ending. An unchanged file gets no new version.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from protocol import jsjson
from services.common.logs import error_text, get_logger
from services.dev_core.artifacts import records
from services.dev_core.artifacts.blobs import MAX_ARTIFACT_BYTES, Blob, Blobs
from services.dev_core.artifacts.naming import clean_name, type_of
from services.dev_core.artifacts.saving import SaveFailed, ask_workspace, read_file
from services.dev_core.clock import now_ms
from services.dev_core.effects.held import own_session, storable
from services.dev_core.harness.run import Run
from services.dev_core.store import events
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import Tx

OUTPUTS: Final = "/workspace/outputs"
MAX_FILES: Final = 10_000
MAX_BYTES: Final = 1024 * 1024 * 1024
"""Of all files of one turn's end together."""
EXPORT_S: Final = 120.0
"""Afterwards the turn ends without the rest."""
_MAX_NOTED: Final = 20


@dataclass(slots=True)
class _Notes:
    """What was left out, for the log: the first few by name."""

    problems: list[dict[str, str]] = field(default_factory=list)
    count: int = 0

    def add(self, message: str, path: str | None = None) -> None:
        self.count += 1
        if self.count <= _MAX_NOTED:
            self.problems.append({"message": message} if path is None else {"path": path, "message": message})


class Exporter:
    """Exports the outputs of turns that complete."""

    def __init__(self, store: Store, blobs: Blobs, *, export_s: float = EXPORT_S) -> None:
        self._store = store
        self._blobs = blobs
        self._export_s = export_s

    async def export(self, run: Run) -> None:
        """Exports. Raises HarnessApiError when the run is not its session's any more or its connection is
        lost, and StoreFailed."""
        if run.facts.sandbox is None or not await self._store.read(
            partial(_has_workspace, session_id=run.session_id)
        ):
            return
        notes = _Notes()
        try:
            async with asyncio.timeout(self._export_s):
                await self._export(run, notes)
        except TimeoutError:
            notes.add(f"The export took longer than {self._export_s:.0f} s; what was left is not exported")
        if notes.count:
            await self._store.write(partial(_note, run=run, notes=notes, now_ms=now_ms()))

    async def _export(self, run: Run, notes: _Notes) -> None:
        total = 0
        for path, size in await self._listed(run, notes):
            if run.abort is not None:
                return
            total += size
            if size > MAX_ARTIFACT_BYTES:
                notes.add(f"It has {size} bytes; an artifact has at most {MAX_ARTIFACT_BYTES}", path)
            elif total > MAX_BYTES:
                notes.add(f"The files have more than {MAX_BYTES} bytes; this one and later ones are left out")
                return
            else:
                await self._export_file(run, path, notes)

    async def _listed(self, run: Run, notes: _Notes) -> list[tuple[str, int]]:
        try:
            result = await ask_workspace(run, {"list": {"dir": OUTPUTS, "maxEntries": MAX_FILES}})
        except SaveFailed as failure:
            notes.add(f"{OUTPUTS} can't be listed: {failure.message}")
            return []
        match result:
            case {"kind": "listed", "listing": {"entries": list(entries), "truncated": bool(truncated)}}:
                if truncated:
                    notes.add(f"There are more than {MAX_FILES} files; the rest is left out")
                return _files(entries[:MAX_FILES], notes)
            case {"kind": "missing"}:
                return []
            case {"kind": "failed", "message": str(message)}:
                notes.add(f"{OUTPUTS} can't be listed: {message}")
            case _:
                notes.add(f"{OUTPUTS} can't be listed: the harness gave no list")
        return []

    async def _export_file(self, run: Run, path: str, notes: _Notes) -> None:
        try:
            data = await read_file(run, f"{OUTPUTS}/{path}")
        except SaveFailed as failure:
            notes.add(failure.message, path)
            return
        blob = Blob(await asyncio.to_thread(_sha256, data), len(data))
        async with self._blobs.lock:
            try:
                if not self._blobs.path(blob.sha256).exists():
                    await self._blobs.put(data)
            except OSError as error:
                get_logger().error("artifact_not_stored", error=error_text(error))
                notes.add("The core could not store the file", path)
                return
            await self._store.write(partial(_keep, run=run, path=path, blob=blob, now_ms=now_ms()))


def _files(entries: list[Any], notes: _Notes) -> list[tuple[str, int]]:
    """Path and bytes of each file; what a harness lists that is no file is noted."""
    files: list[tuple[str, int]] = []
    for entry in entries:
        match entry:
            case {"path": str(path), "size": int(size)} if path and size >= 0:
                files.append((path, size))
            case _:
                notes.add("The harness listed something that is no file")
    return files


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _has_workspace(tx: Tx, session_id: str) -> bool:
    """A workspace that was never opened has no files, and asking would cost every turn a round trip."""
    return tx.one("SELECT 1 FROM workspaces WHERE session_id = ? LIMIT 1", (session_id,)) is not None


def _keep(tx: Tx, run: Run, path: str, blob: Blob, now_ms: int) -> None:
    own_session(tx, run.held)
    kept = storable(path)
    last = records.at_path(tx, run.session_id, kept)
    if last is not None and last.sha256 == blob.sha256:
        return
    records.add(
        tx,
        run.session_id,
        blob,
        artifact_id=None if last is None else last.artifact_id,
        name=clean_name(path) or "output",
        content_type=type_of(path),
        now_ms=now_ms,
        path=kept,
        turn_id=run.held.turn_id,
    )


def _note(tx: Tx, run: Run, notes: _Notes, now_ms: int) -> None:
    own_session(tx, run.held)
    payload = jsjson.dumps({"count": notes.count, "problems": notes.problems})
    events.append(tx, run.session_id, "artifacts.incomplete", run.held.turn_id, payload, now_ms)
