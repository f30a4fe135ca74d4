"""The settings of the Tool Gate's process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.common.hosts import is_loopback
from services.common.settings import Environment, SettingsError
from services.tool_gate.credentials import CONFIG, ConfigInvalid, GateConfig, load_config
from services.tool_gate.pool import IDLE_S, SWEEP_S
from services.tool_gate.tokens import Keys, KeysInvalid, read_key_file

__all__ = ["CONFIG", "SECRETS", "Settings", "SettingsError", "read_settings"]

SECRETS: Final = ("WHIPPLETREE_CORE_TOKEN",)
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 4100
DEFAULT_CORE: Final = "http://127.0.0.1:4000"
KEYS_PATH: Final = "/.well-known/jwks.json"
REQUEST_MS: Final = 60_000
DRAIN_MS: Final = 10_000
"""What calls in flight get when the gate is stopped (mcp-pool 9.4)."""
_DAY_MS: Final = 86_400_000
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Settings:
    """One gate. Times are seconds. `keys` were read from a file; otherwise `keys_url` is asked."""

    host: str
    port: int
    core_url: str
    keys_url: str
    database: Path
    keys: Keys | None = None
    hosts: tuple[str, ...] = ()
    core_token: str | None = field(default=None, repr=False)
    config: GateConfig = field(default_factory=GateConfig, repr=False)
    idle_s: float = IDLE_S
    sweep_s: float = SWEEP_S
    request_s: float = REQUEST_MS / 1000
    drain_s: float = DRAIN_MS / 1000
    faults: bool = False
    traceparent: bool = False
    log_level: str = "info"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads the environment and the files it names. Raises SettingsError."""
    env = Environment(environ)
    host, port = _listen(env)
    hosts = tuple(
        name
        for part in (env.text("WHIPPLETREE_TOOL_GATE_ALLOWED_HOSTS") or "").split(",")
        if (name := part.strip())
    )
    if not hosts and not is_loopback(host):
        env.problem(
            "WHIPPLETREE_TOOL_GATE_ALLOWED_HOSTS is required when WHIPPLETREE_TOOL_GATE_LISTEN is not a "
            "loopback address: the name:port by which the mcp-pool reaches it."
        )
    core = (env.url("WHIPPLETREE_TOOL_GATE_CORE_URL", ("http", "https")) or DEFAULT_CORE).rstrip("/")
    keys_url = env.url("WHIPPLETREE_TOOL_GATE_KEYS_URL", ("http", "https"))
    keys = _keys(env, keys_url)
    core_token = env.secret("WHIPPLETREE_CORE_TOKEN")
    config = _config(env, environ)
    faults = env.flag("WHIPPLETREE_TOOL_GATE_FAULTS", False)
    if faults and not is_loopback(host):
        env.problem("WHIPPLETREE_TOOL_GATE_FAULTS is for tests: the gate must listen on a loopback address.")
    state = env.text("WHIPPLETREE_STATE_DIR", "./.whippletree") or ""
    database = env.text("WHIPPLETREE_TOOL_GATE_DB") or str(Path(state) / "tool-gate.db")

    def seconds(name: str, default: float) -> float:
        return env.integer(name, int(default * 1000), 1, _DAY_MS) / 1000

    settings = Settings(
        host=host,
        port=port,
        core_url=core,
        keys_url=keys_url or core + KEYS_PATH,
        database=Path(database),
        keys=keys,
        hosts=hosts,
        core_token=core_token,
        config=config,
        idle_s=seconds("WHIPPLETREE_TOOL_GATE_IDLE_MS", IDLE_S),
        sweep_s=seconds("WHIPPLETREE_TOOL_GATE_SWEEP_MS", SWEEP_S),
        request_s=seconds("WHIPPLETREE_TOOL_GATE_REQUEST_MS", REQUEST_MS / 1000),
        drain_s=seconds("WHIPPLETREE_TOOL_GATE_DRAIN_MS", DRAIN_MS / 1000),
        faults=faults,
        traceparent=env.flag("WHIPPLETREE_TOOL_GATE_TRACEPARENT", False),
        log_level=env.choice("NYLORUN_LOG_LEVEL", ("debug", "info"), "info"),
    )
    env.finish()
    return settings


def _listen(env: Environment) -> tuple[str, int]:
    text = env.text("WHIPPLETREE_TOOL_GATE_LISTEN")
    if text is None:
        return DEFAULT_HOST, DEFAULT_PORT
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65_535:
        env.problem("WHIPPLETREE_TOOL_GATE_LISTEN must be host:port.")
        return DEFAULT_HOST, DEFAULT_PORT
    return match[1].strip("[]"), int(match[2])


def _keys(env: Environment, url: str | None) -> Keys | None:
    path = env.text("WHIPPLETREE_TOOL_GATE_KEYS_FILE")
    if path is None:
        return None
    if url is not None:
        env.problem(
            "WHIPPLETREE_TOOL_GATE_KEYS_FILE and WHIPPLETREE_TOOL_GATE_KEYS_URL are both set; set one of them."
        )
    try:
        return read_key_file(path)
    except KeysInvalid as error:
        env.problem(f"WHIPPLETREE_TOOL_GATE_KEYS_FILE: {error}.")
        return None


def _config(env: Environment, environ: Mapping[str, str]) -> GateConfig:
    path = env.text(CONFIG)
    if path is None:
        return GateConfig()
    try:
        return load_config(path, environ)
    except ConfigInvalid as error:
        env.problem(f"{CONFIG}: {error}.")
        return GateConfig()
