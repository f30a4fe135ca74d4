"""The folder in which `up` keeps what outlives it: database, root folder, tokens."""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

TOKEN_NAMES = ("harness", "model-executor", "mcp-pool", "sandbox-manager")
TOKEN_BYTES = 32


class StateError(Exception):
    """The state folder can't be used; the text names it and the way out."""


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths below the state folder."""

    path: Path

    @property
    def database(self) -> Path:
        """The development core's database."""
        return self.path / "core.db"

    @property
    def root(self) -> Path:
        """The data root of mcp-pool and sandbox-manager."""
        return self.path / "root"

    def token_file(self, name: str) -> Path:
        """The file that holds one token."""
        return self.path / "tokens" / name


def open_state(path: Path) -> StateFolder:
    """Makes the folder and the tokens that are missing (files 0600 in a folder 0700).

    Raises StateError.
    """
    state = StateFolder(path.absolute())
    try:
        state.path.mkdir(parents=True, exist_ok=True)
        state.root.mkdir(exist_ok=True)
        tokens = state.path / "tokens"
        tokens.mkdir(mode=0o700, exist_ok=True)
        tokens.chmod(0o700)
        for name in TOKEN_NAMES:
            make_token(state.token_file(name))
    except OSError as error:
        raise StateError(
            f"The state folder {state.path} can't be used: {error.strerror or error}. "
            "Name another one with WHIPPLETREE_STATE_DIR."
        ) from error
    return state


def hold_state(state: StateFolder) -> TextIO:
    """Takes the folder for this process until the file is closed, so that no second `up` uses it.

    Raises StateError when another one does.
    """
    path = state.path / "up.lock"
    try:
        file = path.open("a+")
    except OSError as error:
        raise StateError(f"{path} can't be written: {error.strerror or error}.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            file.seek(0)
            holder = file.read().strip()
        raise StateError(
            f"Another `whippletree up`{f' (process {holder})' if holder else ''} runs with the state folder "
            f"{state.path}. Stop it with Ctrl-C, or name another folder with WHIPPLETREE_STATE_DIR."
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def make_token(path: Path) -> None:
    """Writes a new token (0600) unless the file holds one. Raises OSError."""
    if path.exists() and path.read_text().strip():
        path.chmod(0o600)
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(TOKEN_BYTES) + "\n")
    partial.replace(path)
