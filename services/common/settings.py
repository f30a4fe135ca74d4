"""Reads a process's settings from its environment: trimmed, blank means unset, every problem is reported.

operations 2.1 to 2.3 and 12.3. A `Environment` collects problems in the order in which settings are asked
for; `finish` raises them together, so that the first line is the first thing that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from services.common.urls import parse_url

_REFUSED: Final = ("NYLORUN_DATABASE_URL", "NYLORUN_GATES_TOKEN", "NYLORUN_KEYS_URL")
_REFUSED_PREFIX: Final = "NYLORUN_RESTATE_"
_HEX_TOKEN: Final = re.compile(r"[0-9a-fA-F]{64,}")
_MAX_SECRET_FILE_BYTES: Final = 64 * 1024
_SIZE: Final = re.compile(r"([0-9]{1,18})(B|KiB|MiB|GiB|TiB)?")
_SIZE_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MOST_BYTES: Final = 2**62
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class SettingsError(Exception):
    """The environment can't be used. The text is one line with every problem, the first found first."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(" ".join(" ".join(problem.split()) for problem in problems))
        self.problems = tuple(problems)


class Environment:
    """One reading of an environment.

    Every getter notes a problem and gives its default (or an empty value) instead of raising, so that a
    process can name all of them; nothing that was read may be used before `finish` returned.
    """

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = mapping
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        """Notes what is wrong: one line that names the setting and never quotes a secret."""
        self.problems.append(text)

    def finish(self) -> None:
        """Raises SettingsError when anything was wrong."""
        if self.problems:
            raise SettingsError(self.problems)

    def names(self) -> list[str]:
        """Every name that is set to something, sorted."""
        return sorted(name for name, value in self._mapping.items() if value.strip())

    def text(self, name: str, default: str | None = None) -> str | None:
        """The trimmed value, or the default when it is unset or blank."""
        return self._mapping.get(name, "").strip() or default

    def required(self, name: str) -> str:
        """The trimmed value; a problem when there is none."""
        value = self.text(name)
        if value is None:
            self.problem(f"{name} is required.")
            return ""
        return value

    def secret(self, name: str) -> str | None:
        """The value of NAME, or the trimmed content of the file that NAME_FILE names; None when unset."""
        value = self.text(name)
        path = self.text(f"{name}_FILE")
        if path is None:
            return value
        if value is not None:
            self.problem(f"{name} and {name}_FILE are both set; set one of them.")
            return value
        try:
            with Path(path).open("rb") as file:
                content = file.read(_MAX_SECRET_FILE_BYTES + 1)
        except OSError as error:
            self.problem(f"{name}_FILE can't be read: {error.strerror or type(error).__name__}.")
            return None
        if len(content) > _MAX_SECRET_FILE_BYTES:
            self.problem(f"{name}_FILE is larger than {_MAX_SECRET_FILE_BYTES} bytes.")
            return None
        secret = content.decode("utf-8", "replace").strip()
        if not secret:
            self.problem(f"{name}_FILE names an empty file.")
            return None
        return secret

    def hex_token(self, name: str, *, required: bool = False, several: bool = False) -> str | None:
        """A secret of at least 32 bytes in hexadecimal; with `several` a comma list of them."""
        value = self.secret(name)
        if value is None:
            if required and not any(name in problem for problem in self.problems):
                self.problem(f"{name} is required.")
            return None
        tokens = [part.strip() for part in value.split(",")] if several else [value]
        if not all(_HEX_TOKEN.fullmatch(token) for token in tokens):
            self.problem(f"{name} must be at least 32 bytes as hex (64 digits or more).")
            return None
        return ",".join(tokens)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in ASCII digits between `low` and `high`, both allowed."""
        value = self.text(name)
        if value is None:
            return default
        if re.fullmatch(r"[0-9]{1,18}", value) is None or not low <= int(value) <= high:
            self.problem(f"{name} must be a whole number from {low} to {high}.")
            return default
        return int(value)

    def size(self, name: str, default: str, low: int) -> int:
        """A number of bytes of at least `low`: digits, with `B`, `KiB`, `MiB`, `GiB` or `TiB` or without."""
        match = _SIZE.fullmatch(self.text(name, default) or default)
        size = int(match[1]) * _SIZE_UNITS[match[2] or "B"] if match is not None else -1
        if not low <= size < _MOST_BYTES:
            self.problem(f"{name} must be a size such as {default} or a number of bytes, at least {low}.")
        return size

    def port(self, name: str, default: int) -> int:
        """A port from 1 to 65535."""
        value = self.text(name)
        if value is None:
            return default
        if re.fullmatch(r"[0-9]{1,18}", value) is None or not 1 <= int(value) <= 65535:
            self.problem(f"{name} must be a port from 1 to 65535.")
            return default
        return int(value)

    def optional_port(self, name: str) -> int | None:
        """A port from 1 to 65535; None when not set."""
        return self.port(name, 0) or None

    def url(
        self, name: str, schemes: Sequence[str], *, required: bool = False, without: str = ""
    ) -> str | None:
        """A URL with one of the schemes, as it was written (trimmed, not normalised).

        `without`: what to do where there is none, said when a required one is missing.
        """
        value = self.text(name)
        if value is None:
            if required:
                self.problem(f"{name} is required. {without}".rstrip())
            return None
        parts = parse_url(value)
        if parts is None:
            self.problem(f"{name} is not a valid URL.")
            return None
        if parts.scheme not in schemes:
            self.problem(f"{name} must be a URL with the scheme {' or '.join(schemes)}, not {parts.scheme}.")
            return None
        return value

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        """One of the options, exactly as written."""
        value = self.text(name)
        if value is None:
            return default
        if value not in options:
            self.problem(f"{name} must be one of {', '.join(options)}.")
            return default
        return value

    def flag(self, name: str, default: bool) -> bool:
        """`1 true yes on` or `0 false no off`, in any case."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        self.problem(f"{name} must be on or off.")
        return default

    def absolute_path(self, name: str, default: str) -> str:
        """A path that starts with `/`."""
        value = self.text(name, default) or default
        if not value.startswith("/"):
            self.problem(f"{name} must be an absolute path.")
            return default
        return value


def refuse_foreign(env: Environment) -> None:
    """Notes a problem when the environment holds what belongs to other processes (operations 2.3)."""
    names = env.names()
    found: list[str] = [name for name in _REFUSED if name in names]
    found += [name for name in names if name.startswith(_REFUSED_PREFIX)]
    if found:
        env.problem(
            f"This process refuses to start with {', '.join(found)} in its environment: "
            "they belong to other processes of the stack."
        )
