"""A host with secrets, and a manager on it: what attempts to get out of a sandbox are made against."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
import psutil
from whippletree.v1 import common_pb2, sandbox_manager_pb2

from services.sandbox_manager.keys import session_key
from tests.sandbox_manager.escapes import Attempt, Host
from tests.sandbox_manager.running import REPOSITORY, Running
from tests.sandbox_manager.support import TENANT, UID, begin, converse, outcome_of, read, request

USER = 65_500
"""An ordinary user that nobody is."""
_numbers = itertools.count()

_NAMES = "127.0.0.1 localhost inside.test\n169.254.169.254 meta.allowed.test\n::1 six.allowed.test\n"
_SCRIPT = """set -e
mount -t tmpfs -o mode=0755 tmpfs /mnt
hosts=$1 user=$2; shift 2
if [ -n "$hosts" ]; then mount --bind "$hosts" /etc/hosts; fi
n=0
for path in $NEEDED; do n=$((n+1)); mkdir /mnt/$n; mount --bind "$path" /mnt/$n; done
for path in $CLOSED; do mount -t tmpfs -o mode=0755 tmpfs "$path"; done
n=0
for path in $NEEDED; do n=$((n+1)); mkdir -p "$path"; mount --move /mnt/$n "$path"; done
umount -l /mnt
unset NEEDED CLOSED
if [ -n "$user" ]; then exec setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"; fi
exec "$@"
"""
"""Starts a program as an ordinary user who can read what it needs, with names of the tests' own.

$NEEDED lies behind folders ($CLOSED) that this user can't pass."""


def as_user(user: int | None, hosts: Path | None) -> tuple[list[str], dict[str, str]]:
    """What to put before a command, and into its environment. Nothing when this isn't root."""
    if os.geteuid() != 0:
        return [], {}
    closed = _closed([Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]) if user is not None else {}
    environment = {
        "NEEDED": " ".join(str(path) for paths in closed.values() for path in paths),
        "CLOSED": " ".join(map(str, closed)),
    }
    words = ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", _SCRIPT, "sh"]
    return [*words, str(hosts or ""), str(user or "")], environment


def _closed(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """Folders that others can't pass, with those of the paths that lie behind them."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        for folder in [*reversed(path.parents), path]:
            if not folder.stat().st_mode & 0o001:
                found.setdefault(folder, []).append(path)
                break
    return found


@dataclass
class Outside:
    """The host of the tests: everything that a sandbox must not reach."""

    host: Host
    folder: Path
    udp: socket.socket
    victim: subprocess.Popen[bytes]
    marker: str
    received = 0

    def changed(self) -> str | None:
        """What has been changed, or nothing."""
        if (self.folder / "victim" / "file").read_text() != "whole":
            return "a file of the host was changed"
        if [path.name for path in (self.folder / "victim").iterdir()] != ["file"]:
            return "a file was made on the host"
        if self.victim.poll() is not None:
            return "a process of the host was ended"
        left = [
            one.pid for one in psutil.process_iter(["cmdline"]) if self.marker in (one.info["cmdline"] or [])
        ]
        if left:
            return f"processes are left: {left}"
        with contextlib.suppress(BlockingIOError):
            self.udp.recv(100)
            return "a packet came out"
        return None


@contextlib.asynccontextmanager
async def outside(user: int) -> AsyncIterator[Outside]:
    """A host with files, processes and sockets; what has an owner belongs to the user of the sandboxes."""
    secret, marker, word = secrets.token_hex(16), f"31.{secrets.randbelow(10**9)}", f"86399.{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="wt-outside-", dir="/tmp"))
    shm = Path("/dev/shm") / folder.name
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(shm.unlink, missing_ok=True)
        folder.chmod(0o755)
        (folder / "secrets").mkdir()
        (folder / "victim").mkdir()
        for path in (folder / "secrets" / "secret", shm):
            path.write_text(secret)
            path.chmod(0o644)
        (folder / "victim" / "file").write_text("whole")
        if os.geteuid() == 0:
            os.chown(folder / "victim", user, user)
            os.chown(folder / "victim" / "file", user, user)
        victim = stack.enter_context(_victim(word, secret, user))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        udp.bind(("127.0.0.1", 0))
        servers = await _servers(folder, secret)
        for server in servers.values():
            stack.callback(server.close)
        places = {
            "SECRET": secret[:-1] + "[" + secret[-1] + "]",
            "SECRET_FOLDER": str(folder / "secrets"),
            "SECRET_FILE": str(folder / "secrets" / "secret"),
            "VICTIM_FOLDER": str(folder / "victim"),
            "VICTIM_FILE": str(folder / "victim" / "file"),
            "VICTIM_PID": str(victim.pid),
            "VICTIM_WORD": word[:-1] + "[" + word[-1] + "]",
            "MARKER": marker,
            "SHM_NAME": shm.name,
            "KEY_NAME": "wt-key",
            "PORT": str(servers["4"].sockets[0].getsockname()[1]),
            "PORT6": str(servers["6"].sockets[0].getsockname()[1] if "6" in servers else 9),
            "UDP_PORT": str(udp.getsockname()[1]),
            "ADDRESS": _address(),
            "ABSTRACT": folder.name,
            "SOCKET": str(folder / "socket"),
        }
        found = Outside(Host(secret, places), folder, udp, victim, marker)
        found.host = Host(secret, places, found.changed)
        yield found


@contextlib.contextmanager
def _victim(word: str, secret: str, user: int) -> Iterator[subprocess.Popen[bytes]]:
    prefix = [] if os.geteuid() != 0 else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    victim = subprocess.Popen([*prefix, "sleep", word], env={"PATH": "/usr/bin:/bin", "WT_SECRET": secret})
    try:
        yield victim
    finally:
        victim.kill()
        victim.wait()


async def _servers(folder: Path, secret: str) -> dict[str, asyncio.Server]:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(secret.encode())
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    made = {
        "4": await asyncio.start_server(tell, "127.0.0.1", 0),
        "path": await asyncio.start_unix_server(tell, folder / "socket"),
        "abstract": await asyncio.start_unix_server(tell, "\0" + folder.name),
    }
    (folder / "socket").chmod(0o777)
    with contextlib.suppress(OSError):
        made["6"] = await asyncio.start_server(tell, "::1", 0)
    return made


def _address() -> str:
    """An address of this machine besides loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried, contextlib.suppress(OSError):
        tried.connect(("192.0.2.1", 9))
        return str(tried.getsockname()[0])
    return "192.0.2.1"


@dataclass
class ManagerCell:
    """A workspace of a running manager, with the network of an attempt."""

    running: Running
    host: Host
    owner: str
    spec: str

    @classmethod
    def of(cls, running: Running, host: Host, attempt: Attempt, **more: str) -> ManagerCell:
        """The workspace for an attempt: attempts with the same network share one. `more` goes into its spec."""
        network = {"preset": attempt.preset, "allow": list(attempt.hosts)}
        spec = json.dumps({"network": network, **more})
        return cls(running, host, f"{attempt.preset} {len(attempt.hosts)}", spec)

    async def tool(self, name: str, **input_: Any) -> dict[str, Any]:
        """See Cell."""
        operation = sandbox_manager_pb2.ToolOperation(
            tool=name, input=common_pb2.Json(text=json.dumps(input_))
        )
        end = await self._end(tool=operation)
        if end.WhichOneof("message") == "raised":
            return {"kind": "raised", "message": end.raised.message}
        return outcome_of(end)

    async def read_bytes(self, path: str) -> bytes | None:
        """See Cell."""
        operation = sandbox_manager_pb2.ReadBytesOperation(path=path, max_bytes=10**6)
        stream = self.running.run()
        end = await begin(stream, self._request(read_bytes=operation))
        data, file = b"", False
        while end is None and (reply := await read(stream)) is not grpc.aio.EOF:
            match reply.WhichOneof("message"):
                case "event":
                    await stream.write(
                        sandbox_manager_pb2.RunRequest(ack=sandbox_manager_pb2.EventAck(seq=reply.event.seq))
                    )
                case "file":
                    file = True
                case "chunk":
                    data += reply.chunk
        return data if file else None

    async def list_files(self, folder: str) -> list[str] | None:
        """See Cell."""
        end = await self._end(
            list_files=sandbox_manager_pb2.ListFilesOperation(dir=folder, max_entries=10_000)
        )
        if end.WhichOneof("message") != "listing":
            return None
        return [entry.path for entry in end.listing.entries]

    async def _end(self, **operation: Any) -> Any:
        _, end = await converse(self.running.run(), self._request(**operation))
        return end

    def _request(self, **operation: Any) -> sandbox_manager_pb2.RunRequest:
        effect = f"attempt-{next(_numbers)}"
        return request(owner=self.owner, effect=effect, spec=self.spec, **operation)


async def plant_other_workspace(running: Running, host: Host, **more: str) -> Host:
    """Makes a workspace with the secret in it; gives the host with its places. `more` goes into its spec."""
    cell = ManagerCell(running, host, "other", json.dumps({"network": {"preset": "none"}, **more}))
    await cell.tool("write", path="secret", content=host.secret)
    root = running.root / "sandboxes"
    places = {
        **host.places,
        "OTHER_FILE": str(root / session_key(TENANT, "other") / "workspace" / "secret"),
        "ROOT": str(root),
        "MANAGER_PID": str(running.process.pid),
    }
    return Host(host.secret, places, host.unchanged)


def owner_of(mode: str) -> int:
    """As whom the commands of a manager run outside: the manager's user, or the one that root gives itself."""
    if os.geteuid() != 0:
        return os.geteuid()
    return USER if mode == "user" else UID


def hosts_file(folder: Path) -> Path:
    """Names that lead inside, as a resolver under somebody else's hand would give them."""
    path = folder / "hosts"
    path.write_text(_NAMES)
    return path
