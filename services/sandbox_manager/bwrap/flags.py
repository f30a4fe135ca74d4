"""What a command sees: the arguments of bubblewrap for one workspace (sandbox-manager 16.3)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from services.sandbox_manager.bwrap.limits import Limits, limiting_words
from services.sandbox_manager.bwrap.listening_child import PORT
from services.sandbox_manager.paths import WORKSPACE
from services.sandbox_manager.text import encode

ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
"""Of bubblewrap itself, too: it is process 1 inside, where its environment can be read."""

_PROXY: Final = f"http://127.0.0.1:{PORT}"
PROXY_VARIABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1"),
}
"""Beside them, where a spec allows hosts."""

SANDBOX_UID: Final = 1000
SHARED_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""Size of /dev/shm, the only place in memory that commands can fill besides their own."""
LONGEST_ARGUMENT_BYTES: Final = 120 * 1024
"""The kernel takes 128 KiB as one argument; a longer command is handed over as a file."""

_NAMESPACES: Final = (
    "--unshare-user",
    "--disable-userns",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--uid",
    str(SANDBOX_UID),
    "--gid",
    str(SANDBOX_UID),
    "--hostname",
    "sandbox",
    "--cap-drop",
    "ALL",
    "--die-with-parent",
    "--new-session",
)
_SYSTEM_FOLDERS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM_CONFIGURATION: Final = ("/etc/alternatives", "/etc/ssl/certs", "/etc/pki", "/etc/ld.so.cache")
_COMMAND_FILE: Final = "/.command"

ETC_FILES: Final[Mapping[str, bytes]] = {
    "/etc/passwd": b"user:x:1000:1000::/workspace:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
    "/etc/group": b"user:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
}
"""Files made for the sandbox; the host's own /etc is never shown."""


def system_flags(root: Path = Path("/")) -> list[str]:
    """What is the same for every workspace: the host's programs, read-only, and nothing of its data."""
    flags = list(_NAMESPACES)
    flags += ["--ro-bind", str(root / "usr"), "/usr"]
    for name in _SYSTEM_FOLDERS:
        folder = root / name
        if folder.is_symlink():
            flags += ["--symlink", os.readlink(folder), f"/{name}"]
        elif folder.is_dir():
            flags += ["--ro-bind", str(folder), f"/{name}"]
    flags += ["--perms", "0755", "--dir", "/etc"]
    for path in _SYSTEM_CONFIGURATION:
        flags += ["--ro-bind-try", str(root / path[1:]), path]
    flags += ["--proc", "/proc", "--dev", "/dev"]
    flags += ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    return flags


def workspace_flags(folder: str, files: Mapping[str, int]) -> list[str]:
    """The workspace's own mounts; `files` gives an open descriptor for each path to be made."""
    flags: list[str] = []
    for path, descriptor in files.items():
        flags += ["--perms", "0444", "--file", str(descriptor), path]
    flags += ["--bind", f"{folder}/workspace", WORKSPACE, "--bind", f"{folder}/tmp", "/tmp"]
    flags += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]
    return flags


def command_words(command: str, limits: Limits | None) -> tuple[list[str], dict[str, bytes]]:
    """How a command is started, and the files that it needs for that.

    `limits` are those that it sets for itself; None when they are set from outside.
    """
    words = [] if limits is None else list(limiting_words(limits))
    data = encode(command)
    if len(data) <= LONGEST_ARGUMENT_BYTES:
        return [*words, "/bin/bash", "-c", data.decode()], {}
    return [*words, "/bin/bash", _COMMAND_FILE], {_COMMAND_FILE: data}


def render(words: Sequence[str]) -> bytes:
    """Arguments as `--args` reads them."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)
