"""How a child process is started: found in its own PATH, with its own environment, bound to this process.

The child leads a session and a process group of its own, gets exactly the environment it is given, and dies
with this process (parent-death signal through `setpriv`, where util-linux has it).
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

SETPRIV_PROBE_SECONDS: Final = 5
"""setpriv is asked once whether it knows the parent-death signal; it answers within milliseconds."""


class ChildNotStarted(Exception):
    """The program could not be started; the text says why and holds neither environment nor arguments."""

    def __init__(self, message: str, error: int | None = None) -> None:
        super().__init__(message)
        self.errno = error


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start.

    `argv[0]` is looked up in the PATH of `environment` (a name with a slash: from `cwd`). Nothing of this
    process's environment is added. `stdin` is a pipe or /dev/null; `stderr` may also go where stdout goes.
    `pass_fds` stay open in the child under their numbers.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str | None = None
    stdin: Literal["pipe", "null"] = "pipe"
    stdout: Literal["pipe", "null"] = "pipe"
    stderr: Literal["pipe", "null", "stdout"] = "null"
    pass_fds: tuple[int, ...] = ()


@functools.cache
def death_signal_prefix(signal_name: str = "KILL") -> tuple[str, ...]:
    """Words to put before a command so that it gets a signal when this process ends; empty without setpriv.

    `signal_name` is as setpriv has it, without SIG. The kernel sends the signal when the thread that started
    the child ends, so children are to be started on the main thread. A setuid program drops it.
    """
    setpriv = shutil.which("setpriv", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if setpriv is None or not sys.platform.startswith("linux"):
        return ()
    prefix = (setpriv, "--pdeathsig", signal_name, "--")
    try:
        probe = subprocess.run(
            [*prefix, setpriv, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SETPRIV_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return prefix if probe.returncode == 0 else ()


def find_executable(command: str, environment: Mapping[str, str], cwd: str | None) -> str:
    """The file that the system would run for `command` in a child with this environment and folder.

    Raises ChildNotStarted when there is none, or none that may be executed.
    """
    if not command or "\0" in command:
        raise ChildNotStarted("The command is empty or not a file name.", errno.ENOENT)
    folder = cwd if cwd is not None else os.curdir
    if "/" in command:
        candidates = [os.path.join(folder, command)]
    else:
        path = environment.get("PATH", os.defpath)
        candidates = [os.path.join(folder, entry, command) for entry in path.split(os.pathsep)]
    found_but_refused = False
    for candidate in candidates:
        try:
            if os.path.isfile(candidate):
                if os.access(candidate, os.X_OK):
                    return candidate
                found_but_refused = True
        except ValueError:
            continue
    if found_but_refused:
        raise ChildNotStarted(f"The command {command!r} is not executable.", errno.EACCES)
    where = "does not exist" if "/" in command else "was not found in PATH"
    raise ChildNotStarted(f"The command {command!r} {where}.", errno.ENOENT)


def spawn(spec: ChildSpec) -> subprocess.Popen[bytes]:
    """Starts the program. Raises ChildNotStarted."""
    # Looked for before, because behind setpriv a missing command is an exit code and a line on stderr.
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        raise ChildNotStarted(f"The working directory {spec.cwd!r} does not exist.", errno.ENOENT)
    find_executable(spec.argv[0], spec.environment, spec.cwd)
    stderr = {"pipe": subprocess.PIPE, "null": subprocess.DEVNULL, "stdout": subprocess.STDOUT}[spec.stderr]
    try:
        return subprocess.Popen(
            [*death_signal_prefix(), *spec.argv],
            bufsize=0,
            stdin=subprocess.PIPE if spec.stdin == "pipe" else subprocess.DEVNULL,
            stdout=subprocess.PIPE if spec.stdout == "pipe" else subprocess.DEVNULL,
            stderr=stderr,
            cwd=spec.cwd,
            env=dict(spec.environment),
            pass_fds=spec.pass_fds,
            start_new_session=True,
        )
    except OSError as error:
        raise ChildNotStarted(_why(error, spec), error.errno) from None
    except ValueError:
        # A NUL byte, a lone surrogate, or `=` in the name of a variable.
        raise ChildNotStarted(
            f"The command {spec.argv[0]!r} has an argument or variable that the system cannot pass.",
            errno.EINVAL,
        ) from None


def _why(error: OSError, spec: ChildSpec) -> str:
    command = repr(spec.argv[0])
    match error.errno:
        case errno.E2BIG:
            return f"The arguments and environment of {command} are too long for the system."
        case errno.EMFILE | errno.ENFILE:
            return f"The command {command} was not started: too many files are open."
        case errno.EAGAIN | errno.ENOMEM:
            return f"The command {command} was not started: no process or memory is left."
        case errno.EACCES | errno.EPERM:
            return f"The command {command} may not be executed."
        case errno.ENOEXEC:
            return f"The command {command} is not a program that the system can run."
        case _:
            return f"The command {command} was not started: {os.strerror(error.errno or 0)}."
