"""Checks of what a stack needs here: ports, tokens, targets, the core, a model."""

from __future__ import annotations

import importlib.util
import json
import socket
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cli.doctor.finding import Finding
from cli.ports import SETTINGS, PortError, Ports, check_free, ports_from
from cli.stack import core_url
from cli.state import TOKEN_NAMES
from gateway.settings import SettingsError, read_service_settings

CONNECT_S: Final = 3.0
SKEW_S: Final = 60.0
"""Run tokens live for minutes; clocks that are further apart refuse them."""
_TARGETS: Final = (
    "NYLORUN_MODEL_EXECUTOR_TARGET",
    "NYLORUN_MCP_POOL_TARGET",
    "NYLORUN_SANDBOX_MANAGER_TARGET",
)
_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_SECRETS: Final = ("NYLORUN_HARNESS_TOKEN", "NYLORUN_GRPC_TOKEN", "WHIPPLETREE_CORE_TOKEN", *_KEYS.values())


def stack(environ: Mapping[str, str], folder: Path) -> Iterator[Finding]:
    """All of them; `folder` is where `up` keeps its state."""
    yield from ports(environ)
    yield tokens(folder)
    yield from secret_files(environ)
    yield from targets(environ)
    yield from core(environ)
    yield model(environ)


def ports(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Those that `up` takes: free, or taken by a stack that runs."""
    try:
        wanted = ports_from(environ)
    except PortError as error:
        yield Finding("ports of `up`", "problem", str(error))
        return
    if _core_answers(wanted):
        yield Finding("ports of `up`", "ok", f"a stack runs here: {core_url(wanted)}")
        return
    taken: list[str] = []
    while len(taken) < len(SETTINGS):
        try:
            check_free(wanted, unused=taken)
            break
        except PortError as error:
            yield Finding("ports of `up`", "problem", str(error))
            taken.append(next(name for name in SETTINGS if str(getattr(wanted, name)) in str(error)))
    if not taken:
        yield Finding("ports of `up`", "ok", "all free")


def _core_answers(wanted: Ports) -> bool:
    try:
        with urllib.request.urlopen(f"{core_url(wanted)}/health", timeout=CONNECT_S) as answer:
            return bool(json.loads(answer.read(4096)).get("service") == "dev-core")
    except (OSError, ValueError, AttributeError):
        return False


def tokens(folder: Path) -> Finding:
    """The tokens that `up` made: for their owner alone."""
    found = [folder / "tokens" / name for name in TOKEN_NAMES if (folder / "tokens" / name).exists()]
    if not found:
        return Finding("tokens of `up`", "ok", f"none yet; `up` makes them in {folder}")
    open_ones = [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        names = " ".join(map(str, open_ones))
        return Finding("tokens of `up`", "problem", "others may read them", f"chmod 600 {names}")
    return Finding("tokens of `up`", "ok", f"{len(found)} in {folder / 'tokens'}, for their owner alone")


def secret_files(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Files that settings name."""
    for name in _SECRETS:
        path = environ.get(f"{name}_FILE", "").strip()
        if not path:
            continue
        try:
            empty = not Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            yield Finding(
                f"{name}_FILE", "problem", f"{path}: {error}", "Name a file that this user can read."
            )
            continue
        if empty:
            yield Finding(f"{name}_FILE", "problem", f"{path} is empty", "Write the secret into it.")
        else:
            yield Finding(f"{name}_FILE", "ok", path)


def targets(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The services that a gateway with this environment would call."""
    if not any(environ.get(name, "").strip() for name in _TARGETS):
        return
    try:
        settings = read_service_settings(environ)
    except SettingsError as error:
        yield Finding("targets", "problem", " ".join(str(error).split()))
        return
    for name, places in settings.targets.items():
        for place in places:
            yield reached(f"target of {name}", place.target.rpartition("/")[2])


def core(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The core of NYLORUN_HARNESS_URL, and how far its clock is from ours."""
    url = environ.get("NYLORUN_HARNESS_URL", "").strip()
    if not url:
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme in ("wss", "https") else 80)
    yield reached("core", f"{parts.hostname or ''}:{port}")
    ahead = _ahead(f"{'https' if parts.scheme in ('wss', 'https') else 'http'}://{parts.netloc}/")
    if ahead is None:
        return
    far = abs(ahead) > SKEW_S
    yield Finding(
        "clock against the core's", "problem" if far else "ok", f"{ahead:+.0f} s", "Set both clocks by NTP."
    )


def _ahead(url: str) -> float | None:
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_S) as answer:
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
    except (OSError, ValueError):
        return None
    try:
        return None if date is None else time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def reached(what: str, address: str) -> Finding:
    """Whether a TCP connection opens."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return Finding(what, "ok", address)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        return Finding(what, "problem", f"{address}: {reason}", "Start it, or correct the setting.")


def model(environ: Mapping[str, str]) -> Finding:
    """Whether a real model can be used."""
    keys = [name for name, key in _KEYS.items() if environ.get(key) or environ.get(f"{key}_FILE")]
    if environ.get("OPENAI_BASE_URL", "").strip():
        keys.append("openai" if "openai" not in keys else "a server of your own (OPENAI_BASE_URL)")
    if not keys:
        return Finding(
            "real model",
            "note",
            "no key in the environment: answers are scripted.",
            "Set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL, and pass --model provider/name.",
        )
    missing = [name for name in keys if name in _KEYS and importlib.util.find_spec(name) is None]
    if missing:
        extras = " ".join(missing)
        return Finding(
            "real model", "problem", f"the client of {extras} is not installed", f"pip install {extras}"
        )
    return Finding(
        "real model", "ok", f"{', '.join(keys)}; pass --model provider/name to `up`, `chat` or `demo`"
    )
