"""Listening sockets inside of sandboxes, for the proxy outside.

A sandbox has a network of its own with nothing but loopback. The socket is made in there by a helper process
(`listening_child`) and handed to the manager: no program and no socket of the host has to be in the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal as signals
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from services.sandbox_manager.bwrap import listening_child
from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.disk.identity import Identity

PORT: Final = listening_child.PORT
"""On 127.0.0.1 of every sandbox that may reach hosts."""
LISTEN_LIMIT_S: Final = 10.0
"""For one socket, with the start of the helper."""
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class Listeners:
    """Makes listening sockets, one after the other. The helper is started by the first request."""

    def __init__(self, identity: Identity | None) -> None:
        self._identity = identity or Identity(os.getuid(), os.getgid())
        self._helper: _Helper | None = None
        self._turn = asyncio.Lock()

    async def listen(self, process: int) -> socket.socket:
        """A socket that listens on 127.0.0.1:PORT in the network of a process. Raises BackendError.

        The process must not have ended yet.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(LISTEN_LIMIT_S):
                    if self._helper is None:
                        self._helper = _Helper(self._identity)
                    return await self._helper.ask(process)
            except TimeoutError:
                self.close()
                raise BackendError("The sandbox's way out was not made in time.") from None
            except OSError as error:
                self.close()
                raise BackendError(f"The sandbox's way out can't be made: {error.strerror}.") from error
            except asyncio.CancelledError:
                # Its answer would be taken for that of the next request.
                self.close()
                raise

    def close(self) -> None:
        """Ends the helper; the next request starts another one."""
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()


class _Helper:
    def __init__(self, identity: Identity) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        numbers = [theirs.fileno(), identity.uid, identity.gid, os.getpid()]
        program = [sys.executable, "-I", "-S", str(Path(listening_child.__file__))]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*program, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_ENVIRONMENT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                self._channel.close()
                raise

    async def ask(self, process: int) -> socket.socket:
        """Raises BackendError, OSError."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, str(process).encode())
        answer, descriptors = await self._receive()
        for descriptor in descriptors:
            return socket.socket(fileno=descriptor)
        if not answer:
            raise OSError(errno.EPIPE, "the helper process has ended")
        raise BackendError(f"The sandbox's way out can't be made: {answer.decode('utf-8', 'replace')}.")

    async def _receive(self) -> tuple[bytes, list[int]]:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._channel, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._channel)
        answer, descriptors, _, _ = socket.recv_fds(self._channel, listening_child.MOST_BYTES, 1)
        return answer, descriptors

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signals.SIGKILL)
        self._process.wait()
