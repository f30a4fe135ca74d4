"""The bytes of artifact versions: one file each, named by SHA-256, in a folder beside the database.

A blob is written before the row that names it is committed, so a row never points at nothing. Whoever adds
rows or drops blobs holds `lock` from the look at the folder to the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from services.common.process import StartFailed
from services.dev_core.store.opening import MEMORY

MAX_ARTIFACT_BYTES: Final = 47 * 1024 * 1024
"""Of one version: what still fits a Harness API frame in base64."""
_PART: Final = ".part"


class BlobTooLarge(Exception):
    """More bytes than an artifact version may have."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that are stored."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes that have come and are not stored yet."""

    file: IO[bytes]
    part: str
    blob: Blob


class Blobs:
    """The folder. One process uses it, the one that holds the database's lock."""

    def __init__(self, folder: Path, *, temporary: bool) -> None:
        self._folder: Final = folder
        self._temporary = temporary
        self.lock: Final = asyncio.Lock()

    @classmethod
    async def open(cls, database: str) -> Blobs:
        """The folder of a database: `<file>.artifacts`, or a temporary one for a database in memory.

        Parts that an earlier process left are deleted. Raises StartFailed when the folder can't be used.
        """
        return await asyncio.to_thread(cls._open, database)

    @classmethod
    def _open(cls, database: str) -> Blobs:
        try:
            if database == MEMORY:
                return cls(Path(tempfile.mkdtemp(prefix="whippletree-artifacts-")), temporary=True)
            folder = Path(f"{database}.artifacts")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in folder.glob(f"*{_PART}"):
                part.unlink()
        except OSError as error:
            raise StartFailed(f"The folder of artifacts can't be used: {error}") from error
        return cls(folder, temporary=False)

    async def close(self) -> None:
        """Deletes a temporary folder."""
        if self._temporary:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def path(self, sha256: str) -> Path:
        """Where the bytes are."""
        return self._folder / sha256

    async def put(self, data: bytes) -> Blob:
        """Stores bytes. Raises BlobTooLarge, and OSError when the disk refuses."""
        if len(data) > MAX_ARTIFACT_BYTES:
            raise BlobTooLarge
        return await asyncio.to_thread(self._put, data)

    def _put(self, data: bytes) -> Blob:
        with self._part() as (file, name):
            file.write(data)
            return self._keep(file, name, Blob(hashlib.sha256(data).hexdigest(), len(data)))

    @contextlib.asynccontextmanager
    async def receiving(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[Received]:
        """Takes bytes as they come, which may be slowly: they are stored by `keep`, or not at all.

        Raises BlobTooLarge, and OSError when the disk refuses.
        """
        digest = hashlib.sha256()
        size = 0
        with self._part() as (file, name):
            async for chunk in chunks:
                size += len(chunk)
                if size > MAX_ARTIFACT_BYTES:
                    raise BlobTooLarge
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
            yield Received(file, name, Blob(digest.hexdigest(), size))

    async def keep(self, received: Received) -> Blob:
        """Stores what was received. Raises OSError when the disk refuses."""
        return await asyncio.to_thread(self._keep, received.file, received.part, received.blob)

    @contextlib.contextmanager
    def _part(self) -> Iterator[tuple[IO[bytes], str]]:
        handle, name = tempfile.mkstemp(suffix=_PART, dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file, name
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _keep(self, file: IO[bytes], name: str, blob: Blob) -> Blob:
        file.flush()
        os.fsync(file.fileno())
        os.rename(name, self.path(blob.sha256))
        return blob

    async def drop(self, hashes: Iterable[str]) -> None:
        """Deletes blobs that no version names any more."""
        await asyncio.to_thread(self._drop, tuple(hashes))

    def _drop(self, hashes: tuple[str, ...]) -> None:
        for sha256 in hashes:
            self.path(sha256).unlink(missing_ok=True)
