"""The children of the emulated driver: at most four, any workspace in any of them, killed when they must be.

A child outlives its commands, because starting one takes most of a second. One is always ready or on its
way, so that a kill costs nobody a wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal as signals
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.common.latch import Latch
from services.common.logs import get_logger
from services.sandbox_manager.captured import NEVER_BEGAN, Captured, exec_result
from services.sandbox_manager.contract import BackendError, ExecResult
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.emulated import wire
from services.sandbox_manager.kills import ABORTED, Kill, killing
from services.sandbox_manager.signals import Signal

MOST_CHILDREN: Final = 4
START_LIMIT_S: Final = 60.0
"""For the interpreter and the library to be loaded, on a machine that has much else to do."""
READ_BYTES: Final = 256 * 1024
RESIDENT_BYTES: Final = 256 * 1024 * 1024
"""A child that keeps more than this after a command is replaced."""
MOST_TRIES: Final = 4
"""How many children may die idle, one after the other, before a request has begun."""
_MODULE: Final = "services.sandbox_manager.emulated.child"
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


class ChildPool:
    """Children over one root. Every child is either idle or has one command."""

    def __init__(self, root: Path, identity: Identity | None, most: int = MOST_CHILDREN) -> None:
        self._root = root
        self._identity = identity
        self._free = asyncio.Semaphore(most)
        self._most = most
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._leaving: set[_Child] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._expecting = 0
        self._closed = False

    def pids(self) -> list[int]:
        """The processes that it has started and that have not ended."""
        return [child.pid for child in self._all if child.alive]

    async def warm(self) -> None:
        """Starts a child if there is none. Raises BackendError."""
        if not self._all:
            self._idle.append(await self._start())

    async def run(
        self,
        request: Mapping[str, Any],
        timeout_ms: float,
        signal: Signal,
        overdrawn: Latch[Kill] | None = None,
    ) -> ExecResult:
        """Has a child do something; kills it at the time limit or the abort, or when `overdrawn` is set.

        What was written before a kill is in the result. The time limit counts from when a child is free.
        Raises BackendError.
        """
        if signal.aborted:
            return NEVER_BEGAN
        async with self._free:
            for _ in range(MOST_TRIES):
                with contextlib.suppress(_NeverBegan):
                    return await self._run(request, timeout_ms, signal, overdrawn)
        raise BackendError("The emulated shell ends whenever it is asked to do something.")

    async def _run(
        self, request: Mapping[str, Any], timeout_ms: float, signal: Signal, overdrawn: Latch[Kill] | None
    ) -> ExecResult:
        child = await self._take()
        self._prepare_another()
        try:
            with killing(child.kill, signal, timeout_ms, overdrawn):
                return await child.run(request)
        finally:
            self._give_back(child)

    async def close(self) -> None:
        """Kills every child."""
        self._closed = True
        for task in list(self._starting):
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        for child in [*self._all, *self._leaving]:
            child.kill(ABORTED)
            await child.wait()
            child.close()
        self._all.clear()
        self._leaving.clear()
        self._idle.clear()

    async def _take(self) -> _Child:
        while True:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                self._forget(child)
            expected = len(self._starting) > self._expecting
            if not self._starting or (len(self._all) < self._most and not expected):
                return await self._start()
            # One is on its way that nobody else waits for: it comes sooner than a new one would.
            self._expecting += 1
            try:
                await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._expecting -= 1

    def _give_back(self, child: _Child) -> None:
        if child.alive and not child.busy and child.resident() <= RESIDENT_BYTES:
            self._idle.append(child)
            return
        child.kill(ABORTED)
        self._forget(child)
        self._prepare_another()

    def _forget(self, child: _Child) -> None:
        self._all.discard(child)
        self._leaving = {other for other in self._leaving if not other.reaped}
        if not child.reaped:
            self._leaving.add(child)
        child.close()

    def _prepare_another(self) -> None:
        if self._closed or self._idle or self._starting or len(self._all) >= self._most:
            return
        task = asyncio.get_running_loop().create_task(self._start_idle())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_idle(self) -> None:
        try:
            self._idle.append(await self._start())
        except BackendError as error:
            get_logger().warning("sandbox_child_not_started", error=str(error))

    async def _start(self) -> _Child:
        child = _Child(self._root, self._identity)
        self._all.add(child)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await child.ready()
        except TimeoutError:
            child.kill(ABORTED)
            self._forget(child)
            raise BackendError("The emulated shell did not start in time.") from None
        except BaseException:
            child.kill(ABORTED)
            self._forget(child)
            raise
        return child


class _NeverBegan(Exception):
    """A child ended before it had read its request: another one may take it."""


class _Child:
    """One child process."""

    def __init__(self, root: Path, identity: Identity | None) -> None:
        self._process = _spawn(root, identity or Identity(os.getuid(), os.getgid()))
        self._pidfd = _open_pidfd(self._process)
        self.pid = self._process.pid
        self._loop = asyncio.get_running_loop()
        self._messages = wire.Reader()
        self._unsent = bytearray()
        self._end: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        self._started = asyncio.Event()
        self._exited = asyncio.Event()
        self._killed: Kill | None = None
        self._open = True
        self._begun = False
        self.busy = True
        self.alive = True
        self._stdout, self._stderr = Captured(), Captured()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._readable)
        self._loop.add_reader(self._pidfd, self._reap)

    async def ready(self) -> None:
        """Waits until it can take a request. Raises BackendError."""
        await self._started.wait()
        if not self.alive:
            raise BackendError("The emulated shell ended while it was started.")
        self.busy = False

    async def run(self, request: Mapping[str, Any]) -> ExecResult:
        """Has it do one thing. Raises BackendError when it ended without being told to."""
        self.busy, self._begun = True, False
        self._stdout, self._stderr = Captured(), Captured()
        self._end = self._loop.create_future()
        self._unsent += wire.document(wire.REQUEST, request)
        self._writable()
        end = await self._end
        self.busy = end is None
        if end is None and not self._begun and self._killed is None:
            raise _NeverBegan
        if end is None and self._killed is None:
            raise BackendError("The emulated shell ended in the middle of a command.")
        if end is not None and "error" in end:
            raise BackendError(f"The emulated shell can't work on this workspace: {end['error']}.")
        killed = self._killed if end is None else None
        return exec_result(self._stdout, self._stderr, 0 if end is None else int(end["exitCode"]), killed)

    def kill(self, why: Kill) -> None:
        """Ends the process and all that it started; the first reason stays."""
        if not self.alive or self._exited.is_set():
            return
        if self._killed is None:
            self._killed = why
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signals.SIGKILL)

    @property
    def reaped(self) -> bool:
        """The process has ended, and nothing of it is left."""
        return self._exited.is_set()

    async def wait(self) -> None:
        """Waits until the process has ended."""
        await self._exited.wait()

    def close(self) -> None:
        """Gives the pipes back. The process is reaped when it ends."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._output)
        self._loop.remove_writer(self._input)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def resident(self) -> int:
        """Bytes of memory that it holds; 0 when that can't be told."""
        try:
            with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return 0

    def _readable(self) -> None:
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._ended()
            return
        for kind, content in self._messages.feed(data):
            if kind == wire.BEGUN:
                self._begun = True
            elif kind == wire.STDOUT:
                self._stdout.add(content)
            elif kind == wire.STDERR:
                self._stderr.add(content)
            elif kind == wire.END and not self._end.done():
                self._end.set_result(json.loads(content))
            elif kind == wire.READY:
                self._started.set()

    def _writable(self) -> None:
        try:
            written = os.write(self._input, self._unsent)
        except BlockingIOError:
            written = 0
        except OSError:
            # It is gone; the end of its output says so.
            self._unsent.clear()
            written = 0
        del self._unsent[:written]
        if self._unsent:
            self._loop.add_writer(self._input, self._writable)
        else:
            self._loop.remove_writer(self._input)

    def _ended(self) -> None:
        self.alive = False
        self._loop.remove_reader(self._output)
        self._started.set()
        if not self._end.done():
            self._end.set_result(None)

    def _reap(self) -> None:
        self._process.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set()


def _spawn(root: Path, owner: Identity) -> subprocess.Popen[bytes]:
    numbers = [str(number) for number in (owner.uid, owner.gid, os.getpid())]
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", _MODULE, str(root), *numbers],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise BackendError(f"The emulated shell can't be started: {error.strerror}.") from error


def _open_pidfd(process: subprocess.Popen[bytes]) -> int:
    """Raises BackendError, and then the process is gone."""
    try:
        return os.pidfd_open(process.pid)
    except OSError as error:
        os.killpg(process.pid, signals.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        raise BackendError(f"The emulated shell can't be watched: {error.strerror}.") from error
