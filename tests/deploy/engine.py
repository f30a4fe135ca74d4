"""A Docker engine for tests: the one that answers here, or one of our own that leaves nothing behind.

An engine of our own runs from Debian's packages in namespaces of its own. Its network is apart from the
machine's: nothing in it reaches the machine or the outside, its packet filter is not the machine's, and its
ports are on its own 127.0.0.1. Its process namespace ends all its containers when it ends, however it ends.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("dockerd", "containerd", "runc", "iptables", "unshare", "nsenter", "setpriv", "ip")
START_S = 60
STOP_S = 60


class EngineError(Exception):
    """The engine did not do what it was asked; the text holds what it said."""


@dataclass(frozen=True)
class Engine:
    """How to talk to an engine: the environment of its clients, and what puts a program into its network."""

    environ: dict
    outside: tuple = ()
    own: bool = False

    def docker(self, *arguments, timeout=60, stdin=None):
        """What `docker ARGUMENTS` prints. Raises EngineError."""
        return call(("docker", *arguments), environ=self.environ, timeout=timeout, stdin=stdin)


def call(command, *, environ=None, timeout=60, stdin=None, cwd=None):
    """A command's standard output. Raises EngineError with all its output when it fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            env=environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{' '.join(command[:4])} took over {timeout} s") from error
    if done.returncode != 0:
        raise EngineError(
            f"{' '.join(command[:4])} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def why_none():
    """Why no engine can be had here; None when one answers or can be started."""
    if shutil.which("docker") is None:
        return "no docker client (on Debian: docker.io)"
    if _answers(dict(os.environ)):
        return None
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"no Docker engine answers, and none can be started without {', '.join(missing)} (on Debian: docker.io)"
    if os.geteuid() != 0:
        return "no Docker engine answers, and only root can start one"
    return None


@contextlib.contextmanager
def engine():
    """The engine that answers, else one of our own for as long as the block takes. Raises EngineError."""
    if _answers(dict(os.environ)):
        yield Engine(dict(os.environ))
        return
    with (
        tempfile.TemporaryDirectory(prefix="wt-engine-", ignore_cleanup_errors=True) as folder,
        _own(Path(folder)) as own,
    ):
        yield own


@contextlib.contextmanager
def _own(folder):
    socket = f"unix://{folder}/docker.sock"
    log = folder / "log"
    daemon = (
        "dockerd", "--host", socket, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
        "--pidfile", f"{folder}/pid", "--log-level", "warn",
    )  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            (
                "setpriv", "--pdeathsig", "KILL",
                "unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child",
                "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *daemon,
            ),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        environ = {**os.environ, "DOCKER_HOST": socket}
        environ.pop("DOCKER_CONTEXT", None)
        until = time.monotonic() + START_S
        while not _answers(environ):
            if process.poll() is not None or time.monotonic() > until:
                raise EngineError(f"dockerd does not start:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        yield Engine(environ, ("nsenter", f"--net=/proc/{_daemon_pid(process)}/ns/net", "--"), own=True)
    finally:
        _stop(process)


def _answers(environ):
    try:
        call(("docker", "version", "--format", "{{.Server.Version}}"), environ=environ, timeout=10)
    except (EngineError, OSError):
        return False
    return True


def _daemon_pid(process):
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def _stop(process):
    with contextlib.suppress(OSError, IndexError):
        os.kill(_daemon_pid(process), signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)
