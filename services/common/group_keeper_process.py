"""Ends process groups whose owner is gone: the standard library alone, some 10 MB.

    python -S -I group_keeper_process.py

Standard input is a pipe of its owner: `+NUMBER` adds a group, `-NUMBER` takes it out, a line each. When the
pipe ends, because it was closed or because its owner was killed, every group that is left gets SIGKILL. No
signal that asks nicely ends it before: whoever stops a whole service at once stops its owner too.
"""

import contextlib
import os
import signal

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_READ_BYTES = 65536


def note(groups: set[int], lines: list[bytes]) -> None:
    """Follows what the owner said."""
    for line in lines:
        number = int(line[1:])
        if line[:1] == b"+":
            groups.add(number)
        else:
            groups.discard(number)


def main() -> None:
    """Reads until the end, then kills what is left."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    while data := os.read(0, _READ_BYTES):
        # A line that the owner had no time to finish says nothing.
        *lines, rest = (rest + data).split(b"\n")
        note(groups, lines)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
