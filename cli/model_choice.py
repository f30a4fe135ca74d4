"""`--model provider/name`: a real model for `up` and `demo`, from the variables that people have set anyway.

The key goes into a file (0600) in the state folder and the configuration names that file: the model-executor
alone reads it, and no process has it in its environment.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from services.common.urls import parse_url, without_password

OPENAI, ANTHROPIC = "openai", "anthropic"
_APIS: Final = {OPENAI: "openai-completions", ANTHROPIC: "anthropic-messages"}
_KEYS: Final = {OPENAI: "OPENAI_API_KEY", ANTHROPIC: "ANTHROPIC_API_KEY"}
_URLS: Final = {OPENAI: "OPENAI_BASE_URL", ANTHROPIC: "ANTHROPIC_BASE_URL"}
DIRECT: Final = "direct"
CONNECT_S: Final = 3.0
"""How long a server may take to accept a connection."""


class ModelChoiceError(Exception):
    """The choice can't be used; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A chosen model: its configuration file, and what to tell people. No secret is in it."""

    config: Path
    says: str

    def settings(self) -> dict[str, str]:
        """The model-executor's settings."""
        return {"WHIPPLETREE_MODEL_ROUTE": DIRECT, "WHIPPLETREE_MODEL_CONFIG": str(self.config)}


def choose_model(model: str, environ: Mapping[str, str], folder: Path, core_url: str) -> ModelChoice:
    """Writes the files of a choice into a folder. Files of prompts come from the core. Raises ModelChoiceError.

    `anthropic/NAME` calls Anthropic. Any other provider is OpenAI or a server that speaks its API at
    OPENAI_BASE_URL, which needs no key.
    """
    provider, _, name = model.partition("/")
    if not provider or not name or not model.isprintable():
        raise ModelChoiceError("--model must be provider/name, for instance openai/gpt-5 or anthropic/NAME.")
    vendor = ANTHROPIC if provider == ANTHROPIC else OPENAI
    key, key_file, url = *_key(environ, _KEYS[vendor]), _value(environ, _URLS[vendor])
    if url is not None:
        parts = parse_url(url)
        if parts is None or parts.scheme not in ("http", "https"):
            raise ModelChoiceError(f"{_URLS[vendor]} must be an http or https URL.")
    if url is None and provider != vendor:
        raise ModelChoiceError(f"--model {model}: set OPENAI_BASE_URL to the server's address.")
    if key is None and key_file is None and url is None:
        local = "" if vendor == ANTHROPIC else ", or OPENAI_BASE_URL to a server that needs no key"
        raise ModelChoiceError(f"--model {model}: set {_KEYS[vendor]}{local}.")
    if url is not None:
        _check_answers(model, url, _URLS[vendor])
    if importlib.util.find_spec(vendor) is None:
        package = _requirement(vendor)
        raise ModelChoiceError(
            f"--model {model} needs the package {vendor}: {sys.executable} -m pip install '{package}'"
        )
    try:
        config = _write(
            folder, model, vendor, _kept(folder, key, key_file), url, [*_media(folder, environ, core_url)]
        )
    except OSError as error:
        raise ModelChoiceError(f"{folder} can't be written: {error.strerror or error}.") from None
    return ModelChoice(config, f"Model: {model} at {without_password(url)}." if url else f"Model: {model}.")


def _check_answers(model: str, url: str, variable: str) -> None:
    """A server of one's own that isn't running is told at once, not by the first turn. Raises ModelChoiceError."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ModelChoiceError(
            f"--model {model}: no server answers at {without_password(url)} ({reason}). "
            f"Start it, or correct {variable}."
        ) from None


def _requirement(vendor: str) -> str:
    """The vendor's package in the versions that fit."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("whippletree") or ():
            package = line.partition(";")[0].strip()
            if package.startswith(vendor):
                return package
    return vendor


def _key(environ: Mapping[str, str], name: str) -> tuple[str | None, Path | None]:
    """A key, or the file that holds one. Raises ModelChoiceError."""
    key, named = _value(environ, name), _value(environ, f"{name}_FILE")
    if key is not None and named is not None:
        raise ModelChoiceError(f"Set {name} or {name}_FILE, not both.")
    if named is None:
        return key, None
    path = Path(named).absolute()
    try:
        empty = not path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelChoiceError(f"{name}_FILE: {path} can't be read: {error}.") from None
    if empty:
        raise ModelChoiceError(f"{name}_FILE: {path} is empty.")
    return None, path


def _kept(folder: Path, key: str | None, file: Path | None) -> Path | None:
    """The file of the key. A key of a variable gets one in the folder, and one that is there goes otherwise."""
    path = _tokens(folder) / "model-key"
    if key is None:
        path.unlink(missing_ok=True)
        return file
    _secret(path, key)
    return path


def _value(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, "").strip() or None


def _media(folder: Path, environ: Mapping[str, str], core_url: str) -> Iterator[str]:
    """The lines that say where files are fetched."""
    yield "[media]"
    yield 'resolver = "http"'
    yield f'url = "{core_url}/v1/sessions/{{sessionId}}/artifacts/{{artifactId}}/{{version}}"'
    token, file = _value(environ, "WHIPPLETREE_CORE_TOKEN"), _value(environ, "WHIPPLETREE_CORE_TOKEN_FILE")
    if token is not None:
        path = _tokens(folder) / "core-http"
        _secret(path, token)
        file = str(path)
    if file is not None:
        yield f"api_key_file = {json.dumps(str(Path(file).absolute()))}"


def _tokens(folder: Path) -> Path:
    path = folder / "tokens"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def _write(
    folder: Path, model: str, vendor: str, key: Path | None, url: str | None, media: Sequence[str]
) -> Path:
    provider = model.partition("/")[0]
    lines = [f"default = {json.dumps(model)}", f"[providers.{json.dumps(provider)}]"]
    lines.append(f"api = {json.dumps(_APIS[vendor])}")
    if url is not None:
        lines.append(f"base_url = {json.dumps(url)}")
    if key is not None:
        lines.append(f"api_key_file = {json.dumps(str(key))}")
    config = folder / "model.toml"
    _secret(config, "\n".join([*lines, *media]))
    return config


def _secret(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    partial.replace(path)
