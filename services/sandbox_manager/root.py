"""The folder that one manager owns: its lock, its tenant (sandbox-manager 16.4, operations 12.9)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from pathlib import Path
from typing import Final

from protocol.jsjson import JsonError, dumps_bytes, loads
from services.sandbox_manager.diskfile import FULL_DISK, DiskFile, UnreadableFile

LOCK_NAME: Final = "manager.lock"
TENANT_NAME: Final = "tenant.json"
_MOST_LOCK_BYTES: Final = 4096


class RootUnusable(Exception):
    """The root can't be used; the text is for the person who started the process."""


class OtherTenant(Exception):
    """The root belongs to another tenant; the text names both."""


class Root:
    """`<harness root>/sandboxes`, held exclusively while this process lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._tenant: str | None = None
        self._file = DiskFile(path / TENANT_NAME)
        self._fixing = asyncio.Lock()

    def take(self) -> None:
        """Makes the folder and locks it. Raises RootUnusable, with the holder's host and pid if it is held."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RootUnusable(f"{self.path} can't be used: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(os.pread(descriptor, _MOST_LOCK_BYTES, 0))
            os.close(descriptor)
            raise RootUnusable(f"{self.path} is in use by {holder}.") from None
        self._lock = descriptor
        try:
            _sign(descriptor)
            self._tenant = self._read_tenant()
        except OSError as error:
            self.release()
            raise RootUnusable(f"{self.path} can't be written: {error.strerror}.") from error
        except RootUnusable:
            self.release()
            raise

    def release(self) -> None:
        """Lets go of the lock. The file stays: removing it would let two processes in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def tenant(self) -> str | None:
        """The tenant whose workspaces are here; None before the first request."""
        return self._tenant

    async def fix_tenant(self, tenant_id: str) -> None:
        """Gives the root to a tenant for good. Raises OtherTenant, OSError."""
        async with self._fixing:
            if self._tenant is None:
                await self._file.write(dumps_bytes({"tenantId": tenant_id}))
                self._tenant = tenant_id
        if self._tenant != tenant_id:
            raise OtherTenant(
                f"The workspaces here belong to tenant {self._tenant!r}; tenant {tenant_id!r} is refused."
            )

    def _read_tenant(self) -> str | None:
        try:
            data = self._file.read()
            if data is None:
                return None
            document = loads(data)
        except (UnreadableFile, JsonError) as error:
            raise RootUnusable(f"{self._file.path} can't be read: {error}.") from error
        tenant = document.get("tenantId") if isinstance(document, dict) else None
        if not isinstance(tenant, str) or not tenant:
            raise RootUnusable(f"{self._file.path} names no tenant.")
        return tenant


def _sign(descriptor: int) -> None:
    """Writes who holds the lock; on a full disk nobody knows, but the lock holds."""
    text = dumps_bytes({"host": socket.gethostname(), "pid": os.getpid()})
    try:
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        text = b""
    os.ftruncate(descriptor, len(text))


def _holder(data: bytes) -> str:
    try:
        document = loads(data)
    except JsonError:
        return "another process"
    if not isinstance(document, dict):
        return "another process"
    return f"process {document.get('pid')} on host {document.get('host')}"
