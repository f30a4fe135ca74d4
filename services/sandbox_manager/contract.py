"""What a backend of workspaces offers the manager and the tools (sandbox-manager 5.1).

A driver (bubblewrap, emulated, later containers and pods) implements `Backend` and `Handle`; nothing above
them knows which one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from services.sandbox_manager.signals import Signal
from services.sandbox_manager.specs import BackendSpec

Isolation = Literal["process", "container"]
Background = Literal["kill", "wait"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a driver has; the conformance suite runs what these ask for (sandbox-manager 15).

    `network_rules`: specs' network rules are enforced by the driver. `list_remove`: workspaces are listed and
    deleted one by one. `processes`: a command may start processes. `real_commands`: they are programs of a
    system. `background`: what a command leaves running when it ends is killed, or waited for while it holds
    the command's streams.
    """

    network_rules: bool = True
    list_remove: bool = True
    processes: bool = True
    real_commands: bool = True
    background: Background = "kill"


class BackendError(Exception):
    """A backend failed. The text is for people: it may name a path of the workspace, never of the host."""


class FileTooLarge(BackendError):
    """A file has more bytes than the caller takes."""

    def __init__(self, path: str, size: int, max_bytes: int) -> None:
        super().__init__(f"{path} has {size} bytes; at most {max_bytes} can be read.")
        self.path = path
        self.size = size
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend can be used here. `reason` and `version` are for people and name the driver."""

    name: str
    available: bool
    isolation: Isolation
    reason: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    The streams hold what was kept (a driver may cap them) and how many bytes after it were dropped.
    `exit_code` is 124 after a timeout and 130 after an abort; `killed` is true for both, and for a command
    that was killed for what it did: then `note` says why, in one line for whoever reads the output.
    """

    exit_code: int
    stdout: str
    stderr: str
    killed: bool = False
    timed_out: bool = False
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines of a file, without their ends, and how many the file has. A line may be cut after 8 KiB."""

    lines: Sequence[str]
    total: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file of a listing: its path below the listed folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Files in the order of the walk; `truncated` when there are more than asked for."""

    entries: Sequence[FileEntry]
    truncated: bool


@dataclass(frozen=True, slots=True)
class GrepQuery:
    """One search. `path` is as the caller gave it, relative to the workspace; `lines` ends the output."""

    pattern: str
    path: str
    include: str | None
    ignore_case: bool
    lines: int
    command: str
    """The same search as a shell command."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a helper command printed, as whole lines, and whether it was stopped before its end."""

    lines: Sequence[str] = field(default_factory=tuple)
    stderr: str = ""
    cut: bool = False
    timed_out: bool = False


def output_of(result: ExecResult) -> Output:
    """What a helper command printed."""
    lines = result.stdout.split("\n")
    cut = result.stdout_dropped > 0
    if cut and len(lines) > 1:
        lines.pop()  # its end was dropped
    return Output(lines, result.stderr, cut, result.timed_out)


class Handle(Protocol):
    """An open workspace. Paths are absolute and as commands see them. All may raise BackendError."""

    @property
    def workspace(self) -> str:
        """The folder that commands start in."""
        ...

    @property
    def created(self) -> bool:
        """The compute had to be made afresh although it may have existed."""
        ...

    async def exec(self, command: str, timeout_ms: float, signal: Signal) -> ExecResult:
        """Runs a shell command in the workspace; what it started is gone when this returns."""
        ...

    async def grep(self, query: GrepQuery, timeout_ms: float, signal: Signal) -> Output:
        """Lines that match."""
        ...

    async def find(self, root: str, command: str, timeout_ms: float, signal: Signal) -> Output:
        """Paths of the regular files below `root`, as `command` would print them."""
        ...

    async def read_lines(self, path: str, start: int, stop: int) -> LineRange | None:
        """Lines `start` (from 0) to before `stop`; None when there is no such file."""
        ...

    async def read_text(self, path: str) -> str | None:
        """The whole file as text; None when there is no such file."""
        ...

    async def read_bytes(self, path: str, max_bytes: int) -> bytes | None:
        """The whole file; None when there is no such file. Raises FileTooLarge."""
        ...

    async def list_files(self, folder: str, max_entries: int) -> Listing | None:
        """Regular files below a folder; None when it is absent or no folder."""
        ...

    async def make_folders(self, path: str, signal: Signal) -> str | None:
        """Makes a folder and those above it; returns what `mkdir -p` would complain about, or None."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Overwrites a file; its folder must exist."""
        ...

    async def stop(self) -> None:
        """Ends the compute; files persist."""
        ...

    def release(self) -> None:
        """Lets go of what the handle holds in this process. May be called twice, also after `stop`."""
        ...


class Backend(Protocol):
    """One way to run workspaces."""

    @property
    def name(self) -> str:
        """`virtual` or `local`."""
        ...

    @property
    def isolation(self) -> Isolation:
        """`process` or `container`."""
        ...

    @property
    def traits(self) -> Traits:
        """What the driver has and lacks."""
        ...

    async def probe(self) -> Probe:
        """Whether it works here. Never raises."""
        ...

    def unmet(self, spec: BackendSpec) -> str | None:
        """Why a spec can't be met, or None."""
        ...

    async def open(self, spec: BackendSpec) -> Handle:
        """Reattaches to a workspace or makes it. Raises BackendError."""
        ...

    async def remove(self, key: str) -> None:
        """Deletes compute and files; what is absent is fine. Raises BackendError."""
        ...

    async def list(self, prefix: str) -> Sequence[str]:
        """The keys held that begin with `prefix`, sorted."""
        ...

    async def close(self) -> None:
        """Ends what the backend keeps running for itself."""
        ...
