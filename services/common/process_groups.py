"""The process group that a child leads: is anybody left in it, and how to signal all of it.

Nobody tells when the last member of a group ends, so groups are looked at. A member that has ended but was
not reaped by its parent still counts to `kill(2)`; under a process 1 that reaps slowly, or not at all, that
would make every stop wait its full time. `/proc` tells them apart.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

LOOK_AGAIN_SECONDS = 0.05
"""One reading of /proc serves all groups for this long: it costs some 20 microseconds a process."""


class ProcessGroup:
    """The group of a child that was started in a session of its own; its number is the child's.

    `on_gone` is called once, when nobody was left in it.
    """

    def __init__(self, number: int, on_gone: Callable[[int], None] | None = None) -> None:
        self.number = number
        self._leader_gone_at: float | None = None
        self._gone = False
        self._on_gone = on_gone

    def leader_gone(self) -> None:
        """The child has ended and was reaped. Its number stays taken while the group has a member."""
        self._leader_gone_at = time.monotonic()

    def signal(self, number: int) -> bool:
        """Sends a signal to every member; False when there is none, or none that we may signal.

        Never reaches a stranger: once the group was seen empty nothing is sent any more.
        """
        if self._gone:
            return False
        try:
            os.killpg(self.number, number)
        except ProcessLookupError:
            if self._leader_gone_at is not None:
                self._is_gone()
            return False
        except PermissionError:
            # Linux: members exist, but all of them run as somebody else by now.
            return False
        return True

    def alive(self) -> bool:
        """The leader, or something that it started in its group, still runs."""
        if self._gone:
            return False
        if self._leader_gone_at is None:
            return True
        # As process 1 of a container we inherit the orphans.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.number, os.WNOHANG) != (0, 0):
                pass
        try:
            os.killpg(self.number, 0)
        except ProcessLookupError:
            self._is_gone()
        except PermissionError:
            return True
        else:
            # Who has ended starts nothing any more: a group of them stays as it is.
            if not _groups.running(self.number, self._leader_gone_at):
                self._is_gone()
        return not self._gone

    def _is_gone(self) -> None:
        self._gone = True
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone(self.number)


class _RunningGroups:
    """The groups with a member that runs, as /proc had them a moment ago."""

    def __init__(self) -> None:
        self._groups: set[int] | None = set()
        self._read_at = float("-inf")

    def running(self, group: int, since: float) -> bool:
        """Whether a member runs, judged by a reading not older than `since`; True without /proc."""
        now = time.monotonic()
        if self._read_at < since or now - self._read_at > LOOK_AGAIN_SECONDS:
            self._groups, self._read_at = _read_groups(), now
        return self._groups is None or group in self._groups


_groups = _RunningGroups()


def _read_groups() -> set[int] | None:
    groups: set[int] = set()
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    for name in names:
        if name.isdigit():
            # A process may end while we look.
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                # After the name in brackets, which may hold anything: state, parent, group.
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    groups.add(int(fields[2]))
    return groups or None
