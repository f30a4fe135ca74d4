"""The child process of the emulated driver: runs one command or search after the other until it is killed.

Started as `python -I -m services.sandbox_manager.emulated.child ROOT UID GID`. It gives up what it does not
need before it says that it is ready: root's rights, the host's files, its core dumps.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import just_bash
from just_bash.commands import registry

from services.sandbox_manager.disk.openat2 import BENEATH, NO_SYMLINKS, openat2
from services.sandbox_manager.emulated import landlock, search, wire
from services.sandbox_manager.emulated.commands import known_commands
from services.sandbox_manager.emulated.filesystem import EntryFileSystem, to_bytes
from services.sandbox_manager.emulated.shell import run_command

MEMORY_BYTES: Final = 1024**3
FILE_BYTES: Final = 5 * 1024**3
OPEN_FILES: Final = 4096
CPU_SECONDS: Final = 660
"""For one command: more than its longest time limit, so that nothing of it goes on where nobody kills it."""
RECURSION: Final = 12_000
_READABLE: Final = (sys.prefix, sys.base_prefix, "/usr/lib", "/usr/share/zoneinfo", "/dev/null", "/proc/self")
"""What the interpreter itself may still look for; nothing there is secret."""
_LOADED_LATE: Final = (
    "asyncio", "bz2", "calendar", "concurrent.futures", "csv", "fnmatch", "gzip", "hashlib", "inspect", "io",
    "itertools", "json", "lzma", "markdownify", "random", "re", "shlex", "stat", "tarfile", "traceback",
    "unicodedata", "urllib.parse", "zlib", "zoneinfo",
)  # fmt: skip
_ENCODINGS: Final = (
    "ascii",
    "cp1252",
    "idna",
    "latin-1",
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
)
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> None:
    """Serves requests from stdin until it ends."""
    uid, gid, parent = (int(number) for number in arguments[1:4])
    folder = os.open(arguments[0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    output = _private_output()
    _load_everything()
    _give_up(folder, uid, gid)
    # Dying with the manager: set last, because a change of user takes it back.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    with open(0, "rb", closefd=False) as requests:
        wires = _Wires(requests, output)
        wires.write(wire.document(wire.READY, {}))
        while (request := wires.read()) is not None:
            _allow_cpu()
            wires.write(wire.message(wire.BEGUN, b""))
            wires.write(wire.document(wire.END, _answer(folder, request, wires)))


def _load_everything() -> None:
    """Imports what the library would import on first use: afterwards the host's files are closed."""
    for module in pkgutil.walk_packages(just_bash.__path__, "just_bash."):
        importlib.import_module(module.name)
    for name in _LOADED_LATE:
        importlib.import_module(name)
    for encoding in _ENCODINGS:
        codecs.lookup(encoding)

    async def load() -> None:
        for command in registry._command_loaders:
            await command.load()

    asyncio.run(load())


def _give_up(folder: int, uid: int, gid: int) -> None:
    sys.setrecursionlimit(RECURSION)
    os.umask(0o022)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        _, hard = resource.getrlimit(limit)
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lower, lower))
    if os.getuid() == 0 and uid != 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    landlock.confine([folder], _READABLE)


def _allow_cpu() -> None:
    """Sets what a command may use of a processor, beside what the child has used."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(time.process_time()) + CPU_SECONDS
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _private_output() -> int:
    """The pipe to the manager under a number of its own: what prints to stdout by mistake goes nowhere."""
    private = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return private


class _Wires:
    """The two pipes to the manager."""

    def __init__(self, requests: BinaryIO, output: int) -> None:
        self._requests = requests
        self._output = output

    def read(self) -> Mapping[str, Any] | None:
        """The next request; None at the end."""
        head = self._requests.read(wire.HEAD_BYTES)
        if len(head) < wire.HEAD_BYTES:
            return None
        length = wire.content_length(head)
        request: Mapping[str, Any] = json.loads(self._requests.read(length))
        return request

    def write(self, data: bytes) -> None:
        """Sends whole messages."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._output, view) :]

    def emit(self, stdout: str, stderr: str) -> None:
        """Sends what a command has written."""
        for kind, text in ((wire.STDOUT, stdout), (wire.STDERR, stderr)):
            data = to_bytes(text)
            for at in range(0, len(data), wire.MOST_PIECE_BYTES):
                self.write(wire.message(kind, data[at : at + wire.MOST_PIECE_BYTES]))


def _answer(root: int, request: Mapping[str, Any], wires: _Wires) -> dict[str, Any]:
    try:
        return {"exitCode": _serve(root, request, wires)}
    except BrokenPipeError:
        raise
    except OSError as error:
        return {"error": error.strerror or "Input/output error"}


def _serve(root: int, request: Mapping[str, Any], wires: _Wires) -> int:
    key = str(request["key"]).encode()
    folder = openat2(root, key, os.O_PATH | os.O_DIRECTORY, resolve=BENEATH | NO_SYMLINKS)
    try:
        if request["do"] == "shell":
            return _shell(folder, request["command"], wires)
        printed = _search(folder, request)
    finally:
        os.close(folder)
    wires.emit("".join(f"{line}\n" for line in printed.lines), printed.stderr)
    return 0


def _search(folder: int, request: Mapping[str, Any]) -> search.Printed:
    if request["do"] == "find":
        return search.find_files(folder, request["root"], request["most"])
    return search.grep(
        folder,
        request["pattern"],
        request["path"],
        include=request["include"],
        ignore_case=request["ignoreCase"],
        lines=request["lines"],
    )


def _shell(folder: int, command: str, wires: _Wires) -> int:
    work = run_command(command, EntryFileSystem(folder), known_commands(), wires.emit)
    try:
        return asyncio.run(work)
    except Exception as error:  # noqa: BLE001  (the edge of the interpreter: its faults are the command's)
        wires.emit("", f"bash: the emulated shell failed on this command ({type(error).__name__})\n")
        return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(sys.argv[1:])
