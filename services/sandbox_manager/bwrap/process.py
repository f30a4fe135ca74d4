"""One run of bubblewrap: started, read, killed as a whole.

Not built on the children of `services.common`: those are put behind `setpriv` for their parent-death signal,
which bubblewrap sets by itself, and a command costs milliseconds that a server does not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal as signals
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from services.common.latch import Latch
from services.sandbox_manager.bwrap.limits import Limits, limit
from services.sandbox_manager.captured import NEVER_BEGAN, Captured, exec_result
from services.sandbox_manager.contract import BackendError, ExecResult
from services.sandbox_manager.kills import ABORTED, Kill, killing
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.text import decode

READ_BYTES: Final = 64 * 1024
PIPES_AFTER_KILL_S: Final = 1.0
"""How long killed processes may hold a pipe before it is closed under them."""
GONE_AFTER_KILL_S: Final = 5.0
"""How long the kernel may take to end a killed sandbox."""
OOM_SCORE: Final = "1000"
SETUP_LIMIT_S: Final = 20.0
"""From the start of bubblewrap to the start of its command."""


Around = Callable[[Sequence[int]], AbstractAsyncContextManager[Latch[Kill] | None]]
"""What stands around a command. It gets the numbers of bubblewrap's process and of the sandbox's first one, and
may give what is set when the command is to be killed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: `words` begin bubblewrap, `command` is what runs inside.

    `flags` gets the descriptors of `files` and gives bubblewrap's arguments, which no process list shows.
    `around` is entered before the command begins and left when it is over. `limits` are set from outside, None
    when the command sets its own.
    """

    words: Sequence[str]
    command: Sequence[str]
    flags: Callable[[Mapping[str, int]], bytes]
    files: Mapping[str, bytes]
    environment: Mapping[str, str]
    seccomp: bytes | None
    pass_fds: Sequence[int] = ()
    around: Around | None = None
    limits: Limits | None = None


class LimitsRefused(BackendError):
    """This process may not set the limits of a sandbox from outside."""


async def run(
    launch: Launch, timeout_ms: float, signal: Signal, overdrawn: Latch[Kill] | None = None
) -> ExecResult:
    """Runs a command in a sandbox. What it started is gone when this returns.

    `overdrawn` is set when it took more than it may. Raises BackendError when the sandbox could not be set up
    or ended in another way than its command did.
    """
    if signal.aborted:
        return NEVER_BEGAN
    sandbox = _Sandbox(_spawn(launch), launch.limits)
    with killing(sandbox.kill, signal, timeout_ms, overdrawn):
        try:
            return await _run(sandbox, launch.around)
        finally:
            await sandbox.close()


async def _run(sandbox: _Sandbox, around: Around | None) -> ExecResult:
    first = await sandbox.set_up()
    if around is None or first is None:
        return await sandbox.go_on()
    try:
        async with around((sandbox.pid, first)) as overdrawn:
            if overdrawn is not None:
                overdrawn.listen(sandbox.kill)
            return await sandbox.go_on()
    except BackendError:
        if not sandbox.killed:
            raise
        return await sandbox.go_on()


@dataclass(slots=True)
class _Spawned:
    process: subprocess.Popen[bytes]
    pidfd: int
    status: int
    block: int


def _spawn(launch: Launch) -> _Spawned:
    given: list[int] = []
    kept: list[int] = []
    try:
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        kept.append(status_read)
        given.append(status_write)
        block_read, block_write = os.pipe2(os.O_CLOEXEC)
        kept.append(block_write)
        given.append(block_read)
        files: dict[str, int] = {}
        for path, data in launch.files.items():
            files[path] = _memory_file(data)
            given.append(files[path])
        own = ["--json-status-fd", str(status_write), "--block-fd", str(block_read)]
        if launch.seccomp is not None:
            given.append(_memory_file(launch.seccomp))
            own += ["--seccomp", str(given[-1])]
        arguments = _memory_file(b"".join(word.encode() + b"\0" for word in own) + launch.flags(files))
        given.append(arguments)
        process = subprocess.Popen(
            [*launch.words, "--args", str(arguments), "--", *launch.command],
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(launch.environment),
            pass_fds=[*given, *launch.pass_fds],
            start_new_session=True,
        )
    except OSError as error:
        for descriptor in kept:
            os.close(descriptor)
        raise BackendError(f"The sandbox could not be started: {error.strerror}.") from error
    finally:
        for descriptor in given:
            os.close(descriptor)
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    try:
        for pipe in pipes:
            # For `> /dev/stderr`: where we are root the command is another user, and the pipes are ours.
            os.fchmod(pipe.fileno(), 0o666)
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        # No descriptor is left. It waits for our word before anything runs inside.
        os.killpg(process.pid, signals.SIGKILL)
        process.wait()
        for pipe in pipes:
            pipe.close()
        for descriptor in kept:
            os.close(descriptor)
        raise BackendError(f"The sandbox could not be started: {error.strerror}.") from error
    return _Spawned(process, pidfd, status_read, block_write)


def _offer_to_oom_killer(pid: int) -> None:
    """When the machine runs out of memory, sandboxes go first, and with this everything in them."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
        file.write(OOM_SCORE)


def _memory_file(data: bytes) -> int:
    descriptor = os.memfd_create("whippletree", os.MFD_CLOEXEC)
    try:
        os.pwrite(descriptor, data, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class _Sandbox:
    """A running bubblewrap with the process that is number 1 inside."""

    def __init__(self, spawned: _Spawned, limits: Limits | None) -> None:
        self._limits = limits
        self._unlimited: OSError | None = None
        self._loop = asyncio.get_running_loop()
        self._process = spawned.process
        self._block: int | None = spawned.block
        self._status_pipe = spawned.status
        self._status = bytearray()
        self._first: int | None = None
        self._first_pid: int | None = None
        self._killed: Kill | None = None
        self._set_up = asyncio.Event()
        self._ended = asyncio.Event()
        self._first_gone = asyncio.Event()
        self._open: set[int] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self.stdout, self.stderr = Captured(), Captured()
        assert spawned.process.stdout is not None
        assert spawned.process.stderr is not None
        self._read(spawned.status, self._add_status)
        self._read(spawned.process.stdout.fileno(), self.stdout.add)
        self._read(spawned.process.stderr.fileno(), self.stderr.add)
        self._pidfd = spawned.pidfd
        self._open.add(self._pidfd)
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def pid(self) -> int:
        """Bubblewrap's own process."""
        return self._process.pid

    @property
    def killed(self) -> bool:
        """It was told to end."""
        return self._killed is not None

    async def set_up(self) -> int | None:
        """Waits for the sandbox's first process; None when it came to an end before. Raises BackendError.

        The process waits for `go_on`.
        """
        try:
            async with asyncio.timeout(SETUP_LIMIT_S):
                await self._set_up.wait()
        except TimeoutError:
            raise BackendError("The sandbox was not set up in time.") from None
        if self._unlimited is not None and not self.killed:
            raise LimitsRefused(f"The sandbox's limits can't be set: {self._unlimited.strerror}.")
        return self._first_pid

    async def go_on(self) -> ExecResult:
        """Lets the command begin, waits for the end, tells how it came.

        Raises BackendError when no command ended.
        """
        if self._block is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._block, b"1")
            self._close_block()
        await self._ended.wait()
        code, killed = self._exit_code(), self._killed
        if code is None and killed is None:
            raise BackendError(self._why())
        return exec_result(self.stdout, self.stderr, code or 0, killed)

    def kill(self, why: Kill) -> None:
        """Ends the whole sandbox. The first reason stays; nothing happens once it has ended."""
        if self._process.returncode is not None:
            return
        if self._killed is None:
            self._killed = why
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signals.SIGKILL)
        if self._first is not None:
            # The end of process 1 ends all processes inside, also those in sessions of their own.
            with contextlib.suppress(ProcessLookupError):
                signals.pidfd_send_signal(self._first, signals.SIGKILL)
        if self._deadline is None:
            self._deadline = self._loop.call_later(PIPES_AFTER_KILL_S, self._give_up_pipes)

    async def close(self) -> None:
        """Kills what is left, waits until it is gone and gives everything back."""
        self.kill(ABORTED)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GONE_AFTER_KILL_S):
                    await self._ended.wait()
                    if self._first is not None:
                        await self._first_gone.wait()
        finally:
            self._give_back()

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

    def _add_status(self, data: bytes) -> None:
        self._status += data
        if self._first is None:
            for line in self._status_lines():
                pid = line.get("child-pid")
                if isinstance(pid, int):
                    self._know_first(pid)

    def _know_first(self, pid: int) -> None:
        # It waits for our word, so the number is still its own.
        with contextlib.suppress(ProcessLookupError):
            self._first = os.pidfd_open(pid)
            self._first_pid = pid
            _offer_to_oom_killer(pid)
            self._limit(pid)
            self._loop.add_reader(self._first, self._first_ended)
        self._set_up.set()
        if self._killed is not None:
            self.kill(self._killed)

    def _limit(self, pid: int) -> None:
        if self._limits is None:
            return
        try:
            limit(pid, self._limits)
        except ProcessLookupError:
            raise
        except OSError as error:
            self._unlimited = error

    def _first_ended(self) -> None:
        assert self._first is not None
        self._loop.remove_reader(self._first)
        self._first_gone.set()

    def _exited(self) -> None:
        self._process.wait()
        self._finish(self._pidfd)

    def _finish(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._loop.remove_reader(descriptor)
            self._open.discard(descriptor)
        if not self._open:
            self._set_up.set()
            self._ended.set()

    def _give_up_pipes(self) -> None:
        for descriptor in list(self._open):
            if descriptor != self._pidfd:
                self._finish(descriptor)

    def _status_lines(self) -> list[dict[str, object]]:
        lines: list[dict[str, object]] = []
        for line in bytes(self._status).split(b"\n"):
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict):
                    lines.append(document)
        return lines

    def _exit_code(self) -> int | None:
        for line in self._status_lines():
            code = line.get("exit-code")
            if isinstance(code, int):
                return code
        return None

    def _why(self) -> str:
        said = decode(bytes(self.stderr.kept)).strip().splitlines()
        reason = said[-1] if said else f"exit code {self._process.returncode}"
        return f"The sandbox ended before its command: {reason}"

    def _close_block(self) -> None:
        if self._block is not None:
            os.close(self._block)
            self._block = None

    def _give_back(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._close_block()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        for descriptor in list(self._open):
            self._loop.remove_reader(descriptor)
        os.close(self._status_pipe)
        if self._first is not None:
            self._loop.remove_reader(self._first)
            os.close(self._first)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
