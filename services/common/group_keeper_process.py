"""Ends process groups whose owner is gone: the standard library alone, some 10 MB.

    python -S -I group_keeper_process.py [MARK]

Standard input is a pipe of its owner: `+NUMBER` adds a group, `-NUMBER` takes it out, a line each. When the
pipe ends, because it was closed or because its owner was killed, every group that is left gets SIGKILL.

The owner may be killed in the moment between starting a group and saying so. MARK is the beginning of a
variable, `NAME=value`, that every process of the owner's has in its environment: groups with it whose leader
is gone, or has lost its parent, are killed as well. Those of another owner with the same mark are spared: their
leaders have him. An owner that has told everything says `.` at the end, and nothing is looked for.

No signal that asks nicely ends it before: whoever stops a whole service at once stops its owner too.
"""

import contextlib
import os
import signal
import sys
import time

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_READ_BYTES = 65536
_LOOKS_SECONDS = (0.0, 0.1, 0.5)
"""Pauses before each look for groups that were not named: their leaders are only just being killed."""


def note(groups: set[int], lines: list[bytes]) -> bool:
    """Follows what the owner said; True when that was all."""
    for line in lines:
        if line == b".":
            return True
        number = int(line[1:])
        if line[:1] == b"+":
            groups.add(number)
        else:
            groups.discard(number)
    return False


def unnamed(mark: bytes, reaper: int) -> set[int]:
    """The groups of processes with this mark whose leader is gone, or a child of whoever takes orphans in."""
    groups: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            # A process may end, or be somebody else's.
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:
                if b"\0" + mark in b"\0" + environ.read():
                    group = os.getpgid(int(name))
                    if _is_orphan(group, reaper):
                        groups.add(group)
    return groups


def _is_orphan(pid: int, reaper: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, *_ = file.read().rpartition(b")")[2].split()
    except OSError:
        return True
    return state in (b"Z", b"X") or int(parent) == reaper


def kill(groups: set[int]) -> None:
    """SIGKILL to each."""
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def main() -> None:
    """Reads until the end, then kills what is left."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest, told = b"", False
    while data := os.read(0, _READ_BYTES):
        # A line that the owner had no time to finish says nothing.
        *lines, rest = (rest + data).split(b"\n")
        told = note(groups, lines)
    kill(groups)
    if not told and len(sys.argv) > 1 and os.path.isdir("/proc/self"):
        for pause in _LOOKS_SECONDS:
            time.sleep(pause)
            # Our parent was the owner; now it is who took us in, and them.
            kill(unnamed(os.fsencode(sys.argv[1]), os.getppid()))


if __name__ == "__main__":
    main()
