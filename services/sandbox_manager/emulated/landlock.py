"""Closes the host's files to this process for good, where the kernel has Landlock.

A second wall behind the interpreter: code that broke out of it would find no file but the workspaces, and
no TCP port.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence
from typing import Final

_CREATE: Final = 444
_ADD: Final = 445
_RESTRICT: Final = 446
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_EXECUTE: Final = 1 << 0
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_FILE_RIGHTS: Final = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 4: 1 << 15, 5: 1 << 16}
"""The first bit above the known rights of each version; later versions add none that we need."""
_TCP_RIGHTS: Final = 0b11
_SCOPES: Final = 0b11
"""Abstract Unix sockets and signals stay among processes of this kind."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def confine(writable: Sequence[int], readable: Sequence[str]) -> int:
    """Allows everything below the folders of `writable` (descriptors) and reading below `readable`.

    Returns the version of Landlock in force; 0 where there is none. Raises OSError when it fails half-way.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = int(libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    if version < 1:
        return 0
    files = _FILE_RIGHTS.get(version, _FILE_RIGHTS[5]) - 1
    rules = _Ruleset(files, _TCP_RIGHTS if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(
        libc.syscall(ctypes.c_long(_CREATE), ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    )
    try:
        for descriptor in writable:
            _allow(libc, ruleset, descriptor, files & ~_EXECUTE)
        for path in readable:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
                _allow(libc, ruleset, descriptor, _EXECUTE | _READ_FILE | (_READ_DIR if folder else 0))
            finally:
                os.close(descriptor)
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc.syscall(ctypes.c_long(_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)
    return version


def _allow(libc: ctypes.CDLL, ruleset: int, folder: int, rights: int) -> None:
    rule = _PathBeneath(rights, folder)
    _checked(
        libc.syscall(
            ctypes.c_long(_ADD),
            ctypes.c_int(ruleset),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    )


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
