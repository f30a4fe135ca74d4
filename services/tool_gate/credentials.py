"""The gate's own TOML file: which servers get which headers, and which may be private (mcp-pool 7.2).

Credentials never come from a manifest. A server's entry names the origin that its headers go to, because
whoever writes agents chooses names and URLs: a header must not follow a name to another place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.common.urls import UrlParts, parse_url
from services.tool_gate.failures import Refused

CONFIG: Final = "WHIPPLETREE_TOOL_GATE_CONFIG"
"""The setting that names the file."""
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_SECRET_BYTES: Final = 64 * 1024
_ROOT: Final = {"allow_private", "servers"}
_SERVER: Final = {"origin", "allow_private", "headers"}
_HEADER: Final = {"env", "file", "prefix"}
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e\t]+")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONNECTION: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "mcp-session-id"}
)


class ConfigInvalid(ValueError):
    """The file can't be used; the text names the place and quotes no secret."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header: its value is `prefix` and the text of a variable, read at start, or of a file."""

    name: str
    prefix: str
    variable: str | None = None
    file: str | None = None
    text: str = field(default="", repr=False)

    def value(self) -> str:
        """The value as it is now. Raises ConfigInvalid when the file can't be read."""
        text = self.text if self.file is None else _secret_file(self.file)
        if _VALUE.fullmatch(text) is None:
            raise ConfigInvalid("the value is empty, or holds what a header can't")
        return self.prefix + text


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """What the file says of one server."""

    origin: tuple[str, str, int | None] | None = None
    allow_private: bool = False
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """How a server may be reached. `headers` replace those of its declaration, by name."""

    headers: Mapping[str, str] = field(repr=False)
    allow_private: bool = False

    def secrets(self) -> tuple[str, ...]:
        """What may stand in no answer: values of 8 and more characters, longest first (mcp-pool 8.6)."""
        values: set[str] = set()
        for value in self.headers.values():
            values.add(value)
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                values.add(token)
        return tuple(sorted((value for value in values if len(value) >= 8), key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class GateConfig:
    """The whole file; without one nothing is private and no server gets a credential."""

    allow_private: bool = False
    servers: Mapping[str, ServerEntry] = field(default_factory=dict)

    def variables(self) -> tuple[str, ...]:
        """The variables that hold credentials, to be forgotten once they are read."""
        headers = (header for entry in self.servers.values() for header in entry.headers)
        return tuple(sorted({header.variable for header in headers if header.variable is not None}))

    def access(self, server_name: str, url: str) -> Access:
        """How a declared server is reached. Raises Refused when its credentials are for another place."""
        entry = self.servers.get(server_name)
        if entry is None:
            return Access({}, self.allow_private)
        if entry.origin is not None and _origin(parse_url(url)) != entry.origin:
            raise Refused(
                f"the Tool Gate knows the server {server_name} at another origin than its url's",
                [server_name],
            )
        try:
            headers = {header.name: header.value() for header in entry.headers}
        except ConfigInvalid as error:
            raise Refused(f"a credential of {server_name} can't be read: {error}", [server_name]) from None
        return Access(headers, self.allow_private or entry.allow_private)


def load_config(path: str, environ: Mapping[str, str]) -> GateConfig:
    """Reads the file and the credentials it names. Raises ConfigInvalid."""
    config = _read(path, environ)
    for name, entry in config.servers.items():
        for header in entry.headers:
            at = f"servers.{name}.headers.{header.name}"
            if header.variable is not None and not environ.get(header.variable, "").strip():
                raise ConfigInvalid(f"{at}: the variable {header.variable} is not set")
            try:
                header.value()
            except ConfigInvalid as error:
                raise ConfigInvalid(f"{at}: {error}") from None
    return config


def may_be_set(name: object, value: object) -> bool:
    """Whether a header of a declaration can go with requests; the connection's own can't be set."""
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and _NAME.fullmatch(name) is not None
        and name.lower() not in _CONNECTION
        and (not value or _VALUE.fullmatch(value) is not None)
    )


def credential_variables(path: str) -> tuple[str, ...]:
    """The variables that a file names, whether or not they are set. Raises ConfigInvalid."""
    return _read(path, {}).variables()


def _read(path: str, environ: Mapping[str, str]) -> GateConfig:
    document = _document(path)
    _only(document, _ROOT, "the file")
    tables = document.get("servers", {})
    if not isinstance(tables, dict):
        raise ConfigInvalid("servers must be a table")
    return GateConfig(
        _flag(document, "the file"),
        {name: _entry(table, f"servers.{name}", environ) for name, table in tables.items()},
    )


def _document(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigInvalid(f"{path} can't be read: {error.strerror or type(error).__name__}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigInvalid(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is not TOML: {error}") from None


def _entry(table: Any, at: str, environ: Mapping[str, str]) -> ServerEntry:
    if not isinstance(table, dict):
        raise ConfigInvalid(f"{at} must be a table")
    if "oauth" in table:
        raise ConfigInvalid(
            f"{at}.oauth: signing in (OAuth) is not built; give the server a header with a token"
        )
    _only(table, _SERVER, at)
    origin = None
    if "origin" in table:
        text = table["origin"]
        parts = parse_url(text) if isinstance(text, str) else None
        origin = _origin(parts)
        if parts is None or origin is None or parts.rest not in ("", "/"):
            raise ConfigInvalid(f"{at}.origin must be http://host, https://host, or one of them with a port")
    tables = table.get("headers", {})
    if not isinstance(tables, dict):
        raise ConfigInvalid(f"{at}.headers must be a table")
    if tables and origin is None:
        raise ConfigInvalid(f"{at}.origin is required beside headers: where they may be sent")
    headers = tuple(_header(name, value, f"{at}.headers.{name}", environ) for name, value in tables.items())
    return ServerEntry(origin, _flag(table, at), headers)


def _header(name: str, value: Any, at: str, environ: Mapping[str, str]) -> Header:
    if _NAME.fullmatch(name) is None or name.lower() in _CONNECTION:
        raise ConfigInvalid(f"{at} is not a header that may be set")
    if not isinstance(value, dict) or len(value.keys() & {"env", "file"}) != 1:
        raise ConfigInvalid(
            f'{at} must be {{env = "NAME"}} or {{file = "PATH"}}, so that no secret stands here'
        )
    _only(value, _HEADER, at)
    if not all(isinstance(text, str) for text in value.values()):
        raise ConfigInvalid(f"{at} must hold texts")
    prefix = value.get("prefix", "")
    if prefix and _VALUE.fullmatch(prefix) is None:
        raise ConfigInvalid(f"{at}.prefix holds what a header can't")
    variable = value.get("env")
    if variable is None:
        return Header(name, prefix, file=value["file"])
    if _VARIABLE.fullmatch(variable) is None:
        raise ConfigInvalid(f"{at}.env must name a variable")
    return Header(name, prefix, variable, text=environ.get(variable, "").strip())


def _secret_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigInvalid(f"{path} can't be read: {error.strerror or type(error).__name__}") from None
    if len(content) > MAX_SECRET_BYTES:
        raise ConfigInvalid(f"{path} is larger than {MAX_SECRET_BYTES} bytes")
    return content.decode("utf-8", "replace").strip()


def _flag(table: Mapping[str, Any], at: str) -> bool:
    value = table.get("allow_private", False)
    if not isinstance(value, bool):
        raise ConfigInvalid(f"{at}: allow_private must be true or false")
    return value


def _only(table: Mapping[str, Any], known: set[str], at: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigInvalid(f"{at}: {unknown[0]} is not known; there are {', '.join(sorted(known))}")


def _origin(parts: UrlParts | None) -> tuple[str, str, int | None] | None:
    if parts is None or parts.scheme not in ("http", "https") or not parts.host:
        return None
    return parts.scheme, parts.host, parts.port
