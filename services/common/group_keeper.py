"""Lets process groups not outlive this process, however it ends.

The parent-death signal reaches only the processes that we started. What those started themselves, in their
groups, is ended by one small process of ours (group_keeper_process.py) that holds the list of groups and the
other end of a pipe: when we are gone, the pipe ends, and it kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Final

from services.common.logs import error_text, get_logger

SCRIPT: Final = Path(__file__).with_name("group_keeper_process.py")

CLOSE_SECONDS: Final = 1.0
"""What its end may take after its pipe is closed; then it is killed."""

PAUSE_SECONDS: Final = 1.0
"""Before another start, should it be killed again and again; until then it is started again at once."""

STARTS_AT_ONCE: Final = 5
"""Within ten pauses."""

COPIES: Final = 2
"""Keepers that know the same groups."""


class GroupKeepers:
    """Several keepers at once: whoever kills this process and one of them in the same instant leaves nothing.

    A keeper that is killed alone is started again by this process. See GroupKeeper for `mark`.
    """

    def __init__(self, mark: str | None = None) -> None:
        self._keepers = [GroupKeeper(mark) for _ in range(COPIES)]

    @property
    def pids(self) -> frozenset[int]:
        """The process ids of those that run."""
        return frozenset(keeper.pid for keeper in self._keepers if keeper.pid is not None)

    def add(self, group: int) -> None:
        """See GroupKeeper."""
        for keeper in self._keepers:
            keeper.add(group)

    def remove(self, group: int) -> None:
        """See GroupKeeper."""
        for keeper in self._keepers:
            keeper.remove(group)

    async def close(self) -> None:
        """Ends them at the same time; groups that are still there are killed."""
        await asyncio.gather(*(keeper.close() for keeper in self._keepers))


class GroupKeeper:
    """Started with the first group, and again whenever it ends. Used on one loop.

    `mark` is the beginning of a variable (`NAME=value`) that every process of these groups has in its
    environment, and nobody else but processes like this one give to theirs.
    """

    def __init__(self, mark: str | None = None) -> None:
        self._mark = mark
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._gone: asyncio.Event = asyncio.Event()
        self._starts: deque[float] = deque(maxlen=STARTS_AT_ONCE)
        self._again: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def groups(self) -> frozenset[int]:
        """What it would kill."""
        return frozenset(self._groups)

    def add(self, group: int) -> None:
        """From now on the group ends with this process. Never fails: without a keeper a log line says so."""
        self._groups.add(group)
        if self._process is None:
            self._start()
        else:
            self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """The group has ended, or was killed. An unknown one is ignored."""
        if group in self._groups:
            self._groups.discard(group)
            if self._process is not None:
                self._tell(f"-{group}\n")

    async def close(self) -> None:
        """Ends the keeper; groups that are still there are killed by it."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        process = self._process
        if process is None:
            return
        self._tell(".\n")
        _close_pipe(process)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._gone.wait()
        except TimeoutError:
            process.kill()
            process.wait()
            self._reap()

    def _start(self) -> None:
        if self._again is not None or self._closed:
            return
        loop = asyncio.get_running_loop()
        often = len(self._starts) == STARTS_AT_ONCE and loop.time() - self._starts[0] < 10 * PAUSE_SECONDS
        if often:
            self._again = loop.call_later(PAUSE_SECONDS, self._start_now)
        else:
            self._start_now()

    def _start_now(self) -> None:
        self._again = None
        loop = asyncio.get_running_loop()
        self._starts.append(loop.time())
        try:
            process = subprocess.Popen(
                [sys.executable, "-S", "-I", str(SCRIPT), *([] if self._mark is None else [self._mark])],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            get_logger().warning("group_keeper_failed", error=error_text(error))
            self._again = loop.call_later(PAUSE_SECONDS, self._start_now)
            return
        self._process = process
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._gone.clear()
        self._watch(process)
        self._tell("".join(f"+{group}\n" for group in self._groups))

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            # As for every child: without pidfds a thread waits.

            def wait() -> None:
                process.wait()
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._ended)

            threading.Thread(target=wait, name="group-keeper", daemon=True).start()
        else:
            loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        process = self._process
        if process is None or process.poll() is None:
            return
        self._reap()
        if not self._closed:
            get_logger().warning("group_keeper_lost", exitCode=process.returncode, groups=len(self._groups))
            if self._groups:
                self._start()

    def _reap(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._process is not None:
            _close_pipe(self._process)
        self._process = None
        self._gone.set()

    def _tell(self, text: str) -> None:
        process, data = self._process, text.encode()
        if process is None or process.stdin is None or process.stdin.closed:
            return
        try:
            written = os.write(process.stdin.fileno(), data)
        except BrokenPipeError:
            return  # it has ended; its successor gets the whole list
        except BlockingIOError:
            written = 0
        if written < len(data):
            # It does not read: a list that can't be trusted is none.
            process.kill()


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
