"""As whom the files of workspaces are touched: this process's user, or, for root, a user made for it.

A manager that runs as root never touches workspaces as root (sandbox-manager 16.3.2): commands run as a
dedicated user, which owns the files, and the manager's own file work happens in threads that have that
user's rights for files.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

FILE_THREADS: Final = 8
"""Workspaces whose files are read or written at the same moment."""

_SYS_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and group that own the workspaces of a manager that runs as root."""

    uid: int
    gid: int


# A thread without root's rights may not be able to read Python's own library, and a codec that was not found
# once is never looked for again in the whole process.
for _encoding in ("ascii", "latin-1", "utf-8", "utf-16-le", "utf-16-be"):
    codecs.lookup(_encoding)


def file_pool(identity: Identity | None, threads: int = FILE_THREADS) -> ThreadPoolExecutor:
    """Threads for file work; with an identity they have no more rights for files than it has."""
    adopt: Callable[[], None] | None = None
    if identity is not None:
        adopt = _Adopt(identity)
    return ThreadPoolExecutor(threads, thread_name_prefix="workspace-files", initializer=adopt)


class _Adopt:
    """Gives up root's rights for files, in the thread that calls it and in no other.

    The C library's setgroups would change all threads of the process, the bare system call changes one.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __call__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("the main thread keeps its rights")
        number = _SYS_SETGROUPS.get(os.uname().machine)
        if number is not None:
            self._libc.syscall(ctypes.c_long(number), ctypes.c_size_t(0), None)
        self._libc.setfsgid(ctypes.c_uint(self._identity.gid))
        self._libc.setfsuid(ctypes.c_uint(self._identity.uid))
        # The calls report nothing; asking for an id that can't exist tells what is in force.
        if self._libc.setfsuid(ctypes.c_uint(0xFFFFFFFF)) != self._identity.uid:
            raise RuntimeError("the rights of root for files could not be given up")
