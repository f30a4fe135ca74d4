"""How a workspace's container reaches the hosts of its spec: the proxy's Unix socket, for its forwarder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from pathlib import Path
from typing import Final

from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.egress.hosts import HostRules
from services.sandbox_manager.egress.proxy import BACKLOG, EgressProxy, Slots

FOLDER: Final = ".egress"
"""Beside the workspaces: a folder for each that has a way out."""
SOCKET_NAME: Final = "proxy.sock"


def egress_folder(root: Path, key: str) -> Path:
    """Where a workspace's socket lies."""
    return root / FOLDER / key


class WayOut:
    """The proxy of one workspace, from `open_way_out` to `close`."""

    def __init__(self, listener: socket.socket, proxy: EgressProxy) -> None:
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(proxy.serve(listener))

    def close(self) -> None:
        """Ends the proxy with its connections."""
        self._task.cancel()
        self._listener.close()


async def open_way_out(
    root: Path, key: str, rules: HostRules, dialer: Dialer, slots: Slots, identity: Identity
) -> WayOut:
    """Makes the socket and serves it. Raises BackendError."""
    try:
        listener = await asyncio.to_thread(_listen, egress_folder(root, key), identity)
    except OSError as error:
        raise BackendError(f"The sandbox's way out can't be made: {error.strerror}.") from error
    return WayOut(listener, EgressProxy(rules, dialer, slots))


def _listen(folder: Path, identity: Identity) -> socket.socket:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A socket's path has at most 107 bytes; one through a descriptor always fits.
        listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET_NAME}")
        if os.geteuid() == 0:
            os.chown(folder / SOCKET_NAME, identity.uid, identity.gid)
            os.chown(folder, identity.uid, identity.gid)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    return listener
