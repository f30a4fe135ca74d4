"""The system calls that commands may not make: a BPF program as bytes, loaded by bubblewrap.

Refused calls fail with EPERM. What is refused: keys (the service's session keyring would be readable),
tracing of the kernel, asynchronous I/O rings, mounts, modules, kexec, file handles, and pushing input into
a terminal (sandbox-manager 16.3.5). Calls of another architecture fail with ENOSYS, and taking space for a
file without writing (fallocate, other than to punch holes) as if the file system could not do it. Sockets
are those of Unix, IPv4, IPv6 and netlink.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LOAD_WORD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_JUMP_IF_SET: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

_NUMBER_AT: Final = 0
_ARCH_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
_SECOND_ARGUMENT_AT: Final = 24
_FAMILIES: Final = (1, 2, 10, 16)
"""Of sockets: Unix, IPv4, IPv6 and netlink."""
_PUNCH_HOLE: Final = 0x02
_X32_BIT: Final = 0x40000000
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""

# The same numbers on all architectures since the tables were joined.
_NEW: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}


@dataclass(frozen=True, slots=True)
class _Arch:
    audit: int
    ioctl: int
    fallocate: int
    socket: int
    memory: tuple[int, ...]
    """memfd_create, memfd_secret, shmget."""
    refused: Mapping[str, int]
    x32: bool = False


_ARCHES: Final = {
    "x86_64": _Arch(
        audit=0xC000003E,
        ioctl=16,
        fallocate=285,
        socket=41,
        memory=(319, 447, 29),
        x32=True,
        refused={
            "syslog": 103,
            "pivot_root": 155,
            "acct": 163,
            "mount": 165,
            "umount2": 166,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "iopl": 172,
            "ioperm": 173,
            "init_module": 175,
            "delete_module": 176,
            "quotactl": 179,
            "lookup_dcookie": 212,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "perf_event_open": 298,
            "fanotify_init": 300,
            "name_to_handle_at": 303,
            "open_by_handle_at": 304,
            "setns": 308,
            "kcmp": 312,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": _Arch(
        audit=0xC00000B7,
        ioctl=29,
        fallocate=47,
        socket=198,
        memory=(279, 447, 194),
        refused={
            "lookup_dcookie": 18,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "quotactl": 60,
            "acct": 89,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "syslog": 116,
            "reboot": 142,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "swapon": 224,
            "swapoff": 225,
            "perf_event_open": 241,
            "fanotify_init": 262,
            "name_to_handle_at": 264,
            "open_by_handle_at": 265,
            "setns": 268,
            "kcmp": 272,
            "finit_module": 273,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
        },
    ),
}


def filter_program(machine: str | None = None, *, memory_groups: bool = True) -> bytes | None:
    """The program for this machine (or `machine`, as `uname -m` names it); None where there is no table.

    Without control groups for memory, also what takes memory that belongs to no process is refused.
    """
    arch = _ARCHES.get(machine or platform.machine())
    if arch is None:
        return None
    program = _Program()
    program.load(_ARCH_AT)
    program.jump(_JUMP_EQUAL, arch.audit, otherwise="foreign")
    program.load(_NUMBER_AT)
    if arch.x32:
        program.jump(_JUMP_AT_LEAST, _X32_BIT, then="foreign")
    refused = {*arch.refused.values(), *_NEW.values()}
    if not memory_groups:
        refused |= set(arch.memory)
    for number in sorted(refused):
        program.jump(_JUMP_EQUAL, number, then="refused")
    program.jump(_JUMP_EQUAL, arch.socket, then="socket")
    program.jump(_JUMP_EQUAL, arch.fallocate, then="fallocate")
    program.jump(_JUMP_EQUAL, arch.ioctl, otherwise="allowed")
    program.load(_SECOND_ARGUMENT_AT)
    for request in _TERMINAL_INPUT:
        program.jump(_JUMP_EQUAL, request, then="refused")
    program.end("allowed", _ALLOW)
    program.end("refused", _ERRNO | errno.EPERM)
    program.end("foreign", _ERRNO | errno.ENOSYS)
    # What isn't listed is not kept apart by namespaces (vsock leads to the machine's own host), or only gives
    # more of the kernel to attack.
    program.label("socket")
    program.load(_FIRST_ARGUMENT_AT)
    for family in _FAMILIES:
        program.jump(_JUMP_EQUAL, family, then="known")
    program.end("", _ERRNO | errno.EAFNOSUPPORT)
    program.end("known", _ALLOW)
    # Files grow by writing: what takes space for nothing fills a disk before anybody sees it.
    program.label("fallocate")
    program.load(_SECOND_ARGUMENT_AT)
    program.jump(_JUMP_IF_SET, _PUNCH_HOLE, otherwise="unsupported")
    program.end("", _ALLOW)
    program.end("unsupported", _ERRNO | errno.EOPNOTSUPP)
    return program.encode()


class _Program:
    """Instructions whose jumps name labels further down; no name means the next instruction."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, str, str]] = []
        self._labels: dict[str, int] = {}

    def load(self, offset: int) -> None:
        self._instructions.append((_LOAD_WORD, offset, "", ""))

    def jump(self, code: int, value: int, then: str = "", otherwise: str = "") -> None:
        self._instructions.append((code, value, then, otherwise))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._instructions)

    def end(self, label: str, value: int) -> None:
        self.label(label)
        self._instructions.append((_RETURN, value, "", ""))

    def encode(self) -> bytes:
        return b"".join(
            struct.pack("=HBBI", code, self._distance(at, then), self._distance(at, otherwise), value)
            for at, (code, value, then, otherwise) in enumerate(self._instructions)
        )

    def _distance(self, at: int, label: str) -> int:
        return self._labels[label] - at - 1 if label else 0
