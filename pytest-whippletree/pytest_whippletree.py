"""Runs an agent from a recording inside a test: no model, no key, no network.

    def test_the_agent_notes_milk(whippletree_recording):
        run = whippletree_recording("recordings/milk.jsonl").run(manifest=MANIFEST, input="note milk")
        assert run.status == "completed"
        assert run.output == "Noted."

The recording answers every model and tool call of the agent. When the agent asks for something else than it
did when the run was recorded, the test fails and shows the first difference.

The agent itself runs in a child process, `whippletree replay --serve`, which gets no secret of this process's
environment. Three ini options: `whippletree_command` (how `whippletree` is called here, by default by that
name), `whippletree_recordings` (a folder that relative paths start from, besides the test file's own) and
`whippletree_timeout` (seconds that one run may take, by default 60).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

__all__ = ["Agent", "AgentRun", "Effect", "RecordingMiss", "RecordingUnusable", "whippletree_recording"]

_PROTOCOL = 1
_DEFAULT_TIMEOUT_S = 60.0
_CLOSE_S = 5.0
_KEPT_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
)
_ABSENT: Any = object()


class RecordingMiss(AssertionError):
    """The agent asks for something that the recording does not have.

    `path`, `before` and `after` say where the request differs first from the recorded one; `path` is None
    when there is no request to compare it with.
    """

    def __init__(self, text: str, effect_id: str, kind: str, difference: Mapping[str, Any] | None) -> None:
        super().__init__(text)
        self.effect_id = effect_id
        self.kind = kind
        self.path: str | None = None if difference is None else difference["path"]
        self.before: Any = None if difference is None else difference["before"]
        self.after: Any = None if difference is None else difference["after"]


class RecordingUnusable(Exception):
    """The recording can't be served, or the agent can't be run from it at all."""


@dataclass(frozen=True)
class Effect:
    """One request of the agent, in order: a model call, a tool call. `document` is all of it."""

    number: int
    effect_id: str
    kind: str
    document: Mapping[str, Any]

    @property
    def tool_name(self) -> str | None:
        """The tool's name, for a tool call."""
        return self.document.get("toolName")

    @property
    def input(self) -> Any:
        """A tool's arguments, or a model's prompt and tools."""
        return self.document.get("input")


@dataclass(frozen=True)
class AgentRun:
    """How the turn went. `status` is completed, paused, waiting, failed, cancelled, uncertain or yielded.

    `output` is the agent's answer, `error` what failed it, `pending` what it waits for.
    """

    status: str
    output: Any = None
    error: Any = None
    pending: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    effects: Sequence[Effect] = ()

    def calls(self, tool_name: str) -> list[Any]:
        """The arguments of every call of this tool, in order."""
        return [effect.input for effect in self.effects if effect.tool_name == tool_name]


class Agent:
    """Runs agents from one recording, or from the recordings of one turn that had to wait."""

    def __init__(self, command: Sequence[str], paths: Sequence[Path], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._number = 0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        argv = [*command, "replay", "--serve", *map(str, paths)]
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(),
            )
        except OSError as error:
            self._errors.close()
            raise RecordingUnusable(
                f"{shlex.join(command)} can't be started ({error.strerror}): install whippletree, or set "
                "whippletree_command in pytest's ini file."
            ) from None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self._next(time.monotonic() + timeout_s)
        except RecordingUnusable:
            self.close()
            raise
        if ready.get("protocol") != _PROTOCOL:
            self.close()
            raise RecordingUnusable(f"This plugin speaks protocol {_PROTOCOL}, whippletree {ready!r}.")
        self.agent_id: str = ready["agentId"]
        """The recorded agent."""
        self.input: Any = ready["input"]
        """The recorded message."""

    def run(self, manifest: Mapping[str, Any] | None = None, input: Any = _ABSENT) -> AgentRun:
        """Runs a turn from its beginning. Without arguments it is the recorded agent and message.

        Raises RecordingMiss when the agent asks for something else, and RecordingUnusable.
        """
        __tracebackhide__ = True
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": "run"}
        if manifest is not None:
            request["manifest"] = manifest
        if input is not _ABSENT:
            request["input"] = input
        self._send(request)
        effects: list[Effect] = []
        ends_at = time.monotonic() + self._timeout_s
        while True:
            line = self._next(ends_at)
            if line["type"] == "effect":
                effects.append(Effect(line["n"], line["effectId"], line["kind"], line["document"]))
            elif line["type"] == "miss":
                raise RecordingMiss(line["text"], line["effectId"], line["kind"], line["difference"])
            elif line["type"] == "error":
                raise RecordingUnusable(line["message"])
            else:
                return _run_of(line, effects)

    def close(self) -> None:
        """Ends the child."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join(_CLOSE_S)
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._errors.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            raise RecordingUnusable(self._last_words()) from None

    def _next(self, ends_at: float) -> dict[str, Any]:
        __tracebackhide__ = True
        try:
            line = self._lines.get(timeout=max(ends_at - time.monotonic(), 0))
        except queue.Empty:
            self._child.kill()
            raise RecordingUnusable(f"whippletree did not answer within {self._timeout_s:g} s.") from None
        if not line:
            raise RecordingUnusable(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _last_words(self) -> str:
        """What the child said before it ended."""
        try:
            self._child.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._errors.seek(0)
        words = self._errors.read().decode("utf-8", "replace").strip()
        return words or f"whippletree ended with exit code {self._child.returncode}."


def pytest_addoption(parser: pytest.Parser) -> None:
    """The ini options."""
    parser.addini("whippletree_command", "how the whippletree command is called", default="whippletree")
    parser.addini("whippletree_recordings", "folder that paths of recordings start from", type="paths")
    parser.addini("whippletree_timeout", "seconds that one run may take", default=str(_DEFAULT_TIMEOUT_S))


class _Recordings:
    """What the fixture gives: call it with one or more paths."""

    def __init__(self, config: pytest.Config, test_folder: Path) -> None:
        self._command = shlex.split(config.getini("whippletree_command"))
        self._folders = [test_folder, *map(Path, config.getini("whippletree_recordings"))]
        self._timeout_s = float(config.getini("whippletree_timeout"))
        self._agents: list[Agent] = []

    def __call__(self, *paths: str | os.PathLike[str]) -> Agent:
        """Opens a recording; several when one turn was recorded in several runs."""
        __tracebackhide__ = True
        if not paths:
            raise TypeError("name at least one recording")
        agent = Agent(self._command, [self._found(Path(path)) for path in paths], self._timeout_s)
        self._agents.append(agent)
        return agent

    def close(self) -> None:
        """Ends every child."""
        for agent in self._agents:
            agent.close()

    def _found(self, path: Path) -> Path:
        for folder in self._folders:
            if (folder / path).exists():
                return folder / path
        looked = " and ".join(str(folder) for folder in self._folders)
        raise RecordingUnusable(f"There is no recording {path} in {looked}.")


@pytest.fixture
def whippletree_recording(request: pytest.FixtureRequest) -> Iterator[_Recordings]:
    """Call it with the path of a recording; `.run(manifest=…, input=…)` then runs an agent from it."""
    recordings = _Recordings(request.config, request.path.parent)
    yield recordings
    recordings.close()


def _run_of(line: Mapping[str, Any], effects: list[Effect]) -> AgentRun:
    params = line["params"]
    if "thrown" in params:
        code = params["thrown"].get("code")
        raise RecordingUnusable(
            f"The agent is refused: {f'{code}: ' if code else ''}{params['thrown']['message']}"
        )
    return AgentRun(
        status=params["status"],
        output=params.get("output"),
        error=params.get("error"),
        pending=params.get("pending", params.get("effectIds")),
        params=params,
        effects=effects,
    )


def _environment() -> dict[str, str]:
    """What the child needs to start: no key of a provider is among it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENVIRONMENT or name.startswith("LC_")
    }
    return kept | {"PYTHONUNBUFFERED": "1"}
