"""What a pool left when it was killed together with its group keepers: ended by the next pool on its root.

A pool that runs holds a lock on a file of its own in the root, and removes the file when it has ended its
servers. A file that nobody holds is that of a pool which had no time to. Its servers died with it (parent-death
signal); what they had started is known by its environment and by a group leader that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

from services.common.group_keeper_process import kill, unnamed
from services.common.logs import error_text, get_logger
from services.mcp_pool.launch import HarnessRoot

PREFIX: Final = ".mcp-pool-"
PROCESS_ONE: Final = 1
"""Takes orphans in, where no other process does. Without a parent-death signal servers are among them."""


class Trace:
    """The file of a pool that runs; `path` is None where there is no place for one."""

    def __init__(self, path: Path | None = None, descriptor: int | None = None) -> None:
        self.path = path
        self._descriptor = descriptor

    def remove(self) -> None:
        """The servers are ended: there is nothing to look for."""
        if self.path is not None and self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def leave_trace(root: HarnessRoot) -> Trace:
    """Ends what killed pools left below this root, and begins the trace of this one.

    Never fails: where no file can be made or locked there is no trace, and nothing is looked for.
    """
    folder = Path(root.path)
    try:
        left = [path for path in folder.glob(f"{PREFIX}*") if _is_left(path)]
        if left:
            _end_leftovers(root)
            for path in left:
                path.unlink(missing_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
    except OSError as error:
        get_logger().debug("mcp_no_trace", error=error_text(error))
        return Trace()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        get_logger().debug("mcp_no_trace", error=error_text(error))
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(name)
        return Trace()
    return Trace(Path(name), descriptor)


def _is_left(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # its pool has just ended, or it is no file of a pool
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _end_leftovers(root: HarnessRoot) -> None:
    if not os.path.isdir("/proc/self"):
        return
    groups = unnamed(os.fsencode(root.mark), PROCESS_ONE)
    if groups:
        get_logger().warning("mcp_leftovers_ended", groups=len(groups))
        kill(groups)
