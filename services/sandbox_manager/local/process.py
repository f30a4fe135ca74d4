"""One command as a plain child in a session of its own (sandbox-manager 12)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as signals
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

from services.sandbox_manager.captured import Captured, exec_result
from services.sandbox_manager.contract import BackendError, ExecResult
from services.sandbox_manager.kills import ABORTED, Kill, killing
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import encode

READ_BYTES: Final = 64 * 1024
LONGEST_ARGUMENT_BYTES: Final = 120 * 1024
"""The kernel takes 128 KiB as one argument; a longer command is handed over as a file."""
PIPES_AFTER_KILL_S: Final = 1.0
"""How long a process that left its group may hold a pipe of a killed command before it is closed under it."""
ENDED_BY_A_SIGNAL: Final = 128
"""The exit code of a command that ended by a signal which is not ours."""


async def run(
    command: str, cwd: str, environment: Mapping[str, str], timeout_ms: float, signal: Signal
) -> ExecResult:
    """Runs a command with /bin/sh. It is over when it has ended and nobody holds its streams any more.

    Raises BackendError when it can't be started, or was aborted before.
    """
    if signal.aborted:
        raise BackendError("Turn cancelled")
    child = _Child(_spawn(command, cwd, environment))
    with killing(child.kill, signal, timeout_ms):
        try:
            return await child.wait()
        finally:
            child.close()


def _spawn(command: str, cwd: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    data = encode(command)
    script: int | None = None
    try:
        words = ["/bin/sh", "-c", data.decode()]
        if len(data) > LONGEST_ARGUMENT_BYTES:
            script = os.memfd_create("whippletree", os.MFD_CLOEXEC)
            with open(script, "wb", closefd=False) as file:
                file.write(data)
            words[1:] = [f"/proc/self/fd/{script}"]
        return subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            pass_fds=() if script is None else (script,),
        )
    except OSError as error:
        raise BackendError(f"The command could not be started: {error.strerror}.") from error
    finally:
        if script is not None:
            os.close(script)


class _Child:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._pidfd = _open_pidfd(process)
        self._killed: Kill | None = None
        self._ended = asyncio.Event()
        self._open = {self._pidfd}
        self._deadline: asyncio.TimerHandle | None = None
        self._stdout, self._stderr = Captured(), Captured()
        # It is waited for at the end: until then its number, and so its group's, is nobody else's.
        self._loop.add_reader(self._pidfd, self._finish, self._pidfd)
        assert process.stdout is not None
        assert process.stderr is not None
        self._read(process.stdout.fileno(), self._stdout.add)
        self._read(process.stderr.fileno(), self._stderr.add)

    async def wait(self) -> ExecResult:
        """Waits for the end and tells how it came."""
        await self._ended.wait()
        code = self._process.wait()
        exit_code = ENDED_BY_A_SIGNAL if code < 0 else code
        return exec_result(self._stdout, self._stderr, exit_code, self._killed)

    def kill(self, why: Kill) -> None:
        """Ends the command's group, once. The first reason stays; nothing happens once it is over."""
        if self._ended.is_set() or self._killed is not None:
            return
        self._killed = why
        # The group lives as long as one of its processes does, also when the first one has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signals.SIGKILL)
        self._deadline = self._loop.call_later(PIPES_AFTER_KILL_S, self._give_up_pipes)

    def close(self) -> None:
        """Ends what still runs, when nobody waits for it any more, and gives the pipes back."""
        self.kill(ABORTED)
        if self._deadline is not None:
            self._deadline.cancel()
        for descriptor in self._open:
            self._loop.remove_reader(descriptor)
        self._open.clear()
        self._process.wait()
        os.close(self._pidfd)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, descriptor: int, add: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._open.add(descriptor)

        def ready() -> None:
            try:
                data = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                return
            if data:
                add(data)
            else:
                self._finish(descriptor)

        self._loop.add_reader(descriptor, ready)

    def _finish(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._open.discard(descriptor)
        if not self._open:
            self._ended.set()

    def _give_up_pipes(self) -> None:
        for descriptor in list(self._open):
            if descriptor != self._pidfd:
                self._finish(descriptor)


def _open_pidfd(process: subprocess.Popen[bytes]) -> int:
    """Raises BackendError, and then the process is gone."""
    try:
        return os.pidfd_open(process.pid)
    except OSError as error:
        os.killpg(process.pid, signals.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        raise BackendError(f"The command can't be watched: {error.strerror}.") from error
