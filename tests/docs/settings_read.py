"""Which settings each process reads, with defaults and bounds: its own code is run and listened to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

import gateway.settings
import services.common.settings
import services.dev_core.settings
import services.mcp_pool.settings
import services.model_executor.settings
import services.sandbox_manager.settings
import services.tool_gate.settings
from cli.gate_choice import GateChoice
from cli.ports import Ports
from cli.stack import StackPlan, process_specs
from cli.state import StateFolder
from services.sandbox_manager.disk.watch import size_text
from tests.docs.pages import ROOT

NAME = re.compile(r"\b(?:NYLORUN|WHIPPLETREE|OTEL)_[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_])")
"""A whole name: not the beginning of one, as in `NYLORUN_RESTATE_*`."""
CODE = ("protocol", "cli", "gateway", "services")
TOKEN = "ab" * 32


@dataclass(frozen=True, slots=True)
class Read:
    """One setting: how it is read, and what the code says of it (None where it says nothing)."""

    name: str
    kind: str
    default: str | None = None
    allowed: str | None = None


class _Listening(services.common.settings.Environment):
    """Notes what is asked for. A getter that uses another one is one question."""

    log: list[Read]

    def __init__(self, mapping: Mapping[str, str]) -> None:
        super().__init__(mapping)
        self._inside = False

    def _note(self, read: Read, ask: Any) -> Any:
        if self._inside:
            return ask()
        self._inside = True
        try:
            self.log.append(read)
            return ask()
        finally:
            self._inside = False

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._note(Read(name, "text", default), lambda: super(_Listening, self).text(name, default))

    def secret(self, name: str) -> str | None:
        return self._note(Read(name, "secret"), lambda: super(_Listening, self).secret(name))

    def hex_token(self, name: str, **how: bool) -> str | None:
        return self._note(Read(name, "secret"), lambda: super(_Listening, self).hex_token(name, **how))

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        read = Read(name, "integer", str(default), f"{low} to {high}")
        return self._note(read, lambda: super(_Listening, self).integer(name, default, low, high))

    def size(self, name: str, default: str, low: int) -> int:
        read = Read(name, "size", default, f"size from {size_text(low)}")
        return self._note(read, lambda: super(_Listening, self).size(name, default, low))

    def port(self, name: str, default: int) -> int:
        read = Read(name, "port", str(default), "1 to 65535")
        return self._note(read, lambda: super(_Listening, self).port(name, default))

    def optional_port(self, name: str) -> int | None:
        read = Read(name, "port", None, "1 to 65535")
        return self._note(read, lambda: super(_Listening, self).optional_port(name))

    def url(
        self, name: str, schemes: Sequence[str], *, required: bool = False, without: str = ""
    ) -> str | None:
        allowed = " or ".join(f"`{scheme}://`" for scheme in schemes) + " URL"
        read = Read(name, "url", None, allowed)
        return self._note(
            read, lambda: super(_Listening, self).url(name, schemes, required=required, without=without)
        )

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        read = Read(name, "choice", default, ", ".join(f"`{option}`" for option in options))
        return self._note(read, lambda: super(_Listening, self).choice(name, options, default))

    def flag(self, name: str, default: bool) -> bool:
        read = Read(name, "flag", "on" if default else "off", "switch")
        return self._note(read, lambda: super(_Listening, self).flag(name, default))

    def absolute_path(self, name: str, default: str) -> str:
        read = Read(name, "path", default, "absolute path")
        return self._note(read, lambda: super(_Listening, self).absolute_path(name, default))


_SERVICE = {"NYLORUN_GRPC_TOKEN": TOKEN}
PROCESSES: dict[str, tuple[ModuleType, Mapping[str, str]]] = {
    "gateway": (
        gateway.settings,
        {
            "NYLORUN_HARNESS_URL": "ws://h:1/",
            "NYLORUN_HARNESS_TOKEN": TOKEN,
            "NYLORUN_MODEL_EXECUTOR_TARGET": "h:1",
            "NYLORUN_MCP_POOL_TARGET": "h:1",
            "NYLORUN_SANDBOX_MANAGER_TARGET": "h:1",
            **_SERVICE,
        },
    ),
    "model-executor": (services.model_executor.settings, {**_SERVICE, "NYLORUN_GATES_URL": "http://g:1"}),
    "mcp-pool": (services.mcp_pool.settings, _SERVICE),
    "sandbox-manager": (services.sandbox_manager.settings, _SERVICE),
    "dev-core": (services.dev_core.settings, {"NYLORUN_HARNESS_TOKEN": TOKEN}),
    "tool-gate": (services.tool_gate.settings, {}),
}
"""The settings module of each process and an environment that it accepts."""


def read_by(process: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Read]:
    """What a process reads, by name; the most telling question of several about one name."""
    module, environ = PROCESSES[process]
    log: list[Read] = []
    listening = type("Listening", (_Listening,), {"log": log})
    monkeypatch.setattr(module, "Environment", listening)
    module.read_settings(environ)
    found: dict[str, Read] = {}
    for read in log:
        known = found.get(read.name)
        if known is None or (known.kind == "text" and read.kind != "text"):
            found[read.name] = read
    for read in [read for read in found.values() if read.kind == "secret"]:
        found[f"{read.name}_FILE"] = Read(f"{read.name}_FILE", "secret file")
    return found


def literal_names() -> set[str]:
    """Every setting's name that stands in the product's code as a text of its own, other than as the key of
    a dictionary: those are settings that one process gives to another."""
    return {name for path in _sources() for name in _names_in(ast.parse(path.read_text("utf-8")))}


def _sources() -> Iterator[Any]:
    for folder in CODE:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _names_in(tree: ast.AST) -> Iterator[str]:
    given = {id(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in given else None
        if isinstance(text, str) and NAME.fullmatch(text):
            yield text


def handed_on(names: set[str], tmp_path: Any) -> dict[str, set[str]]:
    """Which of these settings each process of `up` gets with the value that they have outside."""
    marked = {name: f"as it is: {name}" for name in names}
    plan = StackPlan(StateFolder(tmp_path), Ports(), marked, model_script=tmp_path / "script.json")
    with_gate = replace(plan, gate=GateChoice())
    return {
        spec.name: {name for name, value in spec.environ.items() if value == marked.get(name)}
        for spec in (*process_specs(with_gate), *process_specs(plan))
    }
