"""The system call openat2, which resolves a path inside a folder as if that folder were the root.

Sandboxed code may plant links to files of the host; every path that comes from it is opened through here
(sandbox-manager 16.3.6).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Final

NO_MAGIC_LINKS: Final = 0x02
NO_SYMLINKS: Final = 0x04
BENEATH: Final = 0x08
IN_ROOT: Final = 0x10

_SYS_OPENAT2: Final = 437
_MOST_TRIES: Final = 64
"""How often a rename under our feet (EAGAIN) is met with another try."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc: Final = ctypes.CDLL(None, use_errno=True)


def openat2(folder: int, path: bytes, flags: int, mode: int = 0, resolve: int = IN_ROOT) -> int:
    """Opens `path` below the folder descriptor; magic links are never followed. Raises OSError.

    The descriptor is closed on exec.
    """
    if b"\0" in path:
        raise OSError(errno.EINVAL, "The path holds a NUL byte")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve | NO_MAGIC_LINKS)
    for _ in range(_MOST_TRIES):
        descriptor = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return int(descriptor)
        number = ctypes.get_errno()
        if number not in {errno.EAGAIN, errno.EINTR}:
            raise OSError(number, os.strerror(number))
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def openat2_problem() -> str | None:
    """Why openat2 can't be used here, or None when it can."""
    if not sys.platform.startswith("linux"):
        return "the system has no openat2"
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(openat2(root, b"/", os.O_PATH | os.O_DIRECTORY))
    except OSError as error:
        return f"the system refuses openat2 ({error.strerror})"
    finally:
        os.close(root)
    return None
