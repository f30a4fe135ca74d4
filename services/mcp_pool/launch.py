"""How a declared stdio server is started: command, arguments, folder and environment (mcp-pool 3)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.common.children import ChildSpec
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.failures import LaunchFailed

_ROOT: Final = "${PLUGIN_ROOT}"
_DATA: Final = "${PLUGIN_DATA}"
_PLACEHOLDER: Final = re.compile(r"\$\{PLUGIN_(?:ROOT|DATA)\}")
_RESERVED: Final = ("PLUGIN_ROOT", "PLUGIN_DATA")

_BASELINE: Final = ("PATH", "LANG", "TZ")
_BASELINE_PREFIX: Final = "LC_"
_GAPS: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")


@dataclass(frozen=True, slots=True)
class HarnessRoot:
    """The folders that servers are given; `path` is absolute."""

    path: str

    @property
    def plugin_data(self) -> str:
        """Parent of every capability's own data folder."""
        return os.path.join(self.path, "plugin-data")

    @property
    def home(self) -> str:
        """HOME of servers."""
        return os.path.join(self.path, "home")

    @property
    def temporary(self) -> str:
        """TMPDIR of servers."""
        return os.path.join(self.path, "tmp")

    @property
    def mark(self) -> str:
        """What the environment of every server below this root has: the beginning of a variable."""
        return f"PLUGIN_DATA={self.plugin_data}/"

    def create(self) -> None:
        """Makes the folders that are missing. Raises OSError."""
        for folder in (self.plugin_data, self.home, self.temporary):
            os.makedirs(folder, exist_ok=True)

    def data_of(self, plugin_key: str) -> str:
        """The data folder of a plugin key. Raises LaunchFailed for a key that leads out of the parent."""
        folder = os.path.normpath(os.path.join(self.plugin_data, *plugin_key.split("/")))
        if not _within(folder, self.plugin_data) or "\0" in plugin_key:
            raise LaunchFailed("The capability's id cannot name a plugin data folder.")
        return folder


def base_environment(process: Mapping[str, str], root: HarnessRoot) -> dict[str, str]:
    """What every server gets of this process's environment: an allow-list, and nothing else of it."""
    environment = {
        name: process[name] for name in _GAPS if name in process and not process[name].startswith("()")
    }
    environment |= {
        name: value
        for name, value in process.items()
        if name in _BASELINE or name.startswith(_BASELINE_PREFIX)
    }
    return environment | {"HOME": root.home, "TMPDIR": root.temporary}


def plan_launch(server: DeclaredServer, root: HarnessRoot, base: Mapping[str, str]) -> ChildSpec:
    """What to start for a server, with its data folder made.

    `base` comes from base_environment. Raises LaunchFailed with a text for people.
    """
    declaration, plugin_root = server.declaration, server.plugin_root
    data = root.data_of(server.name.plugin_key())
    try:
        Path(data).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchFailed(f"The plugin data folder can't be made: {error.strerror}.") from None
    command = declaration.get("command")
    args = declaration.get("args", [])
    own = declaration.get("env", {})
    cwd = declaration.get("cwd")
    if not isinstance(command, str) or not _texts(args) or not _text_map(own) or not _maybe_text(cwd):
        raise LaunchFailed("The declaration of the stdio server is not valid.")
    wants_root = any(_ROOT in text for text in (*args, *own.values(), cwd or ""))
    if plugin_root is None and (wants_root or command.startswith("./")):
        raise LaunchFailed("This stdio server requires a plugin root, and its capability has none.")
    for name in _RESERVED:
        if name in own:
            raise LaunchFailed(f"A stdio server's env must not set {name}.")
    if command.startswith("./") and plugin_root is not None:
        command = os.path.normpath(os.path.join(plugin_root, command))
    expand = _expander(plugin_root, data)
    environment = {**base, **{name: expand(value) for name, value in own.items()}}
    if plugin_root is not None:
        environment["PLUGIN_ROOT"] = plugin_root
    environment["PLUGIN_DATA"] = data
    return ChildSpec(
        argv=[command, *(expand(argument) for argument in args)],
        environment=environment,
        cwd=_working_directory(cwd, plugin_root, data, expand),
    )


def _expander(plugin_root: str | None, data: str) -> Callable[[str], str]:
    values = {_ROOT: plugin_root or "", _DATA: data}

    def expand(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values[match[0]], text)

    return expand


def _working_directory(
    declared: str | None, plugin_root: str | None, data: str, expand: Callable[[str], str]
) -> str:
    if declared is None:
        return plugin_root if plugin_root is not None else data
    in_data = declared == _DATA or declared.startswith(f"{_DATA}/")
    if not in_data and plugin_root is None:
        raise LaunchFailed("This stdio server's cwd requires a plugin root, and its capability has none.")
    base = data if in_data or plugin_root is None else plugin_root
    # Links are not followed: what counts is where the text leads.
    folder = os.path.normpath(os.path.join(base, expand(declared)))
    if not _within(folder, base):
        name = "plugin data folder" if in_data else "plugin root"
        raise LaunchFailed(f"The working directory of the stdio server escapes the {name}.")
    return folder


def _within(path: str, base: str) -> bool:
    base = os.path.normpath(base)
    return path == base or path.startswith(base.rstrip("/") + "/")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _maybe_text(value: Any) -> bool:
    return value is None or isinstance(value, str)
