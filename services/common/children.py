"""Child processes that cannot outlive their owner: started in a group of their own, stopped with all of it.

A child runs in its own session, so that its process group holds what it forks, with exactly the environment
it is given. It dies with this process (parent-death signal through `setpriv`, where util-linux has it), its
group too when it was started with a keeper (group_keeper.py), and is stopped in three steps: end of stdin,
SIGTERM to the group, SIGKILL to the group, each followed by a bounded wait. A process that leaves the group
(`setsid`) is out of reach.

The exit is seen through a pidfd, which needs no thread and no child watcher, on asyncio's own loop and on
uvloop alike. Where the system has none, one thread waits for each child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal, Protocol, cast

from services.common.child_start import ChildNotStarted, ChildSpec, spawn
from services.common.process_groups import ProcessGroup

__all__ = [
    "Child",
    "ChildListener",
    "ChildNotStarted",
    "ChildSpec",
    "StopGrace",
    "StreamName",
    "start_child",
]

StreamName = Literal["stdout", "stderr"]

# The shortest and the longest pause between two looks at a group whose leader is gone: nobody tells us when
# the last member of a group ends.
GROUP_POLL_FIRST_SECONDS = 0.002
GROUP_POLL_LAST_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class StopGrace:
    """Seconds to wait after each step of a stop; a step of 0 seconds is not waited for.

    The defaults are those of mcp-pool 3. The last wait is for the kernel only: a process in an
    uninterruptible call of a broken disk outlives it and is reaped when it comes back.
    """

    after_stdin: float = 2.0
    after_terminate: float = 2.0
    after_kill: float = 2.0

    def total(self) -> float:
        """The longest a stop takes, in seconds."""
        return self.after_stdin + self.after_terminate + self.after_kill


class ChildListener(Protocol):
    """Hears of a child; all methods are called on the loop and must not block or raise."""

    def child_output(self, stream: StreamName, data: bytes) -> None:
        """The child wrote `data`, never empty."""

    def child_output_ended(self, stream: StreamName) -> None:
        """Nothing more comes from `stream`: the child and all that it passed the pipe to have closed it."""

    def child_exited(self, returncode: int) -> None:
        """The child itself ended; minus the signal when one ended it. Output may still come."""


class Keeper(Protocol):
    """Hears which groups there are (group_keeper.GroupKeeper)."""

    def add(self, group: int) -> None:
        """A group was started."""
        ...

    def remove(self, group: int) -> None:
        """A group has ended, or got SIGKILL."""
        ...


async def start_child(
    spec: ChildSpec,
    listener: ChildListener,
    on_stdin_closed: Callable[[], None] | None = None,
    keeper: Keeper | None = None,
) -> Child:
    """Starts a program and connects its pipes to `listener`.

    `on_stdin_closed` is called once when stdin is closed, by the child or by us. Raises ChildNotStarted.
    When cancelled, what was started is killed.
    """
    child = Child(spawn(spec), listener, on_stdin_closed, keeper)
    try:
        await child._connect()
    except BaseException:
        child.kill()
        raise
    return child


class Child:
    """A running child process and its group. Made by start_child, used on one loop."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        listener: ChildListener,
        on_stdin_closed: Callable[[], None] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.pid = process.pid
        """The process id, which is also the id of its group and session."""
        self._keeper = keeper
        if keeper is not None:
            keeper.add(process.pid)
        self._process = process
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._group = ProcessGroup(process.pid, keeper.remove if keeper is not None else None)
        self._pidfd: int | None = None
        self._input: asyncio.WriteTransport | None = None
        self._input_end = _Input(on_stdin_closed)
        self._outputs: dict[StreamName, asyncio.ReadTransport] = {}
        self._stop_lock = asyncio.Lock()
        self._watch_exit()

    # -- state

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._exited.result() if self._exited.done() else None

    @property
    def unwritten(self) -> int:
        """Bytes that the child has not yet taken from its stdin and the pipe could not hold."""
        if self._input is None or self._input_end.lost:
            return 0
        return self._input.get_write_buffer_size()

    @property
    def stdin_open(self) -> bool:
        """The child still reads its stdin, as far as is known."""
        return self._input is not None and not self._input.is_closing()

    async def wait(self) -> int:
        """Waits until the child itself has ended."""
        return await asyncio.shield(self._exited)

    # -- pipes

    def write(self, data: bytes) -> bool:
        """Writes to stdin, buffering what the child does not take; False when stdin is closed."""
        if self._input is None or self._input.is_closing():
            return False
        self._input.write(data)
        return True

    def end_stdin(self) -> None:
        """Closes stdin when what is buffered has been taken."""
        if self.stdin_open and self._input is not None:
            self._input.close()

    def pause_output(self, stream: StreamName) -> None:
        """Stops reading a stream; the child blocks when the pipe is full."""
        transport = self._outputs.get(stream)
        if transport is not None and not transport.is_closing():
            transport.pause_reading()

    def resume_output(self, stream: StreamName) -> None:
        """Reads on."""
        transport = self._outputs.get(stream)
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def close_pipes(self) -> None:
        """Closes all three at once, dropping what is unwritten or unread."""
        if self._input is not None:
            # Closing with nothing left to write: the end is scheduled already and must not be twice.
            if self.stdin_open or self.unwritten:
                self._input.abort()
        elif self._process.stdin is not None:
            self._process.stdin.close()
        for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
            transport = self._outputs.get(cast(StreamName, name))
            if transport is not None:
                transport.close()
            elif pipe is not None:
                pipe.close()

    async def _connect(self) -> None:
        process = self._process
        if process.stdin is not None:
            transport, _ = await self._loop.connect_write_pipe(lambda: self._input_end, process.stdin)
            self._input = transport
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe is not None:
                await self._connect_output(cast(StreamName, name), pipe)

    async def _connect_output(self, name: StreamName, pipe: IO[bytes]) -> None:
        reader, _ = await self._loop.connect_read_pipe(lambda: _Output(self._listener, name), pipe)
        self._outputs[name] = reader

    # -- exit

    def _watch_exit(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # Not Linux, a kernel before 5.3, or no descriptor left.
            threading.Thread(target=self._wait_in_thread, name=f"child-{self.pid}", daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    def _wait_in_thread(self) -> None:
        self._process.wait()
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        returncode = self._process.poll()
        if returncode is None:
            return
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        # Looked at now, while the number cannot have been given to anybody else.
        self._group.leader_gone()
        self._group.alive()
        if not self._exited.done():
            self._exited.set_result(returncode)
            self._listener.child_exited(returncode)

    # -- the group

    def signal_group(self, number: int) -> bool:
        """Sends a signal to every process of the group; False when there is none, or none that we may signal."""
        signalled = self._group.signal(number)
        if number == signal.SIGKILL and self._keeper is not None:
            # Nobody can do more to it, and its number will be somebody else's one day.
            self._keeper.remove(self.pid)
        return signalled

    def group_alive(self) -> bool:
        """The child or something that it started in its group still runs."""
        return self._group.alive()

    def kill(self) -> None:
        """SIGKILL to the group, at once, without waiting; pipes are closed. For paths that cannot wait."""
        self.signal_group(signal.SIGKILL)
        self.close_pipes()

    async def stop(self, grace: StopGrace | None = None) -> int | None:
        """Ends the child and its group; takes at most `grace.total()` seconds. Safe to call more than once.

        Returns the exit code, or None when the kernel has not let go of it. When cancelled, the group is
        killed at once and the cancellation goes on.
        """
        grace = grace if grace is not None else StopGrace()
        async with self._stop_lock:
            try:
                self.end_stdin()
                await self._exits_within(grace.after_stdin)
                if self.group_alive():
                    self.signal_group(signal.SIGTERM)
                    await self._group_ends_within(grace.after_terminate)
                if self.group_alive():
                    self.signal_group(signal.SIGKILL)
                    await self._group_ends_within(grace.after_kill)
            except asyncio.CancelledError:
                self.signal_group(signal.SIGKILL)
                raise
            finally:
                self.close_pipes()
        return self.returncode

    async def _exits_within(self, seconds: float) -> bool:
        if self._exited.done():
            return True
        if seconds <= 0:
            return False
        await asyncio.wait({self._exited}, timeout=seconds)
        return self._exited.done()

    async def _group_ends_within(self, seconds: float) -> None:
        deadline = self._loop.time() + seconds
        if not await self._exits_within(seconds):
            return
        pause = GROUP_POLL_FIRST_SECONDS
        while self.group_alive() and self._loop.time() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 2, GROUP_POLL_LAST_SECONDS)


class _Input(asyncio.BaseProtocol):
    """Remembers that the pipe is gone: a transport must not be asked to close after that."""

    def __init__(self, on_lost: Callable[[], None] | None) -> None:
        self.lost = False
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._on_lost is not None:
            self._on_lost()


class _Output(asyncio.Protocol):
    def __init__(self, listener: ChildListener, stream: StreamName) -> None:
        self._listener = listener
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        self._listener.child_output(self._stream, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.child_output_ended(self._stream)
