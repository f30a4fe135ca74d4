"""The development core's settings (the design's table, and the harness token of operations 2.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.common.hosts import is_loopback
from services.common.settings import Environment
from services.dev_core.store.opening import MEMORY

SECRETS: Final = ("WHIPPLETREE_CORE_TOKEN", "NYLORUN_HARNESS_TOKEN")
PING_MS: Final = 30_000
SILENCE_MS: Final = 90_000
"""A harness that nothing was heard of for so long is dropped (harness-api 1.4)."""
SWEEP_MS: Final = 60_000
FLOW_CONCURRENCY: Final = 8
FLOW_MAP_ITEMS: Final = 1000
FLOW_LOOP_ITERATIONS: Final = 100
MAX_FLOW_LIMIT: Final = 1_000_000
REPEAT_PAUSES_S: Final = (1.0, 5.0, 25.0)
"""Before a flow's function is posted for the second, third and fourth time."""
ABORT_GRACE_MS: Final = 30_000
"""How long a run may take to end after any abort, before core gives it up (harness-api 8.5)."""
_DAY_MS: Final = 24 * 3_600_000
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:\s]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds; port 0 takes a free one."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """One development core. Times are milliseconds; `database` is a path or `:memory:`.

    `ping_ms`, `silence_ms` and `abort_grace_ms` are the protocol's own times, `repeat_pauses_s` the poster's:
    not to be set from outside.
    """

    http: Address
    harness: Address
    harness_token: str
    core_token: str | None = None
    http_hosts: tuple[str, ...] = ()
    harness_hosts: tuple[str, ...] = ()
    database: str = MEMORY
    full_sync: bool = False
    lease_ms: int = 30_000
    hold_ms: int = 5_000
    deadline_ms: int = 3_000_000
    action_timeout_ms: int = 60_000
    run_token_ms: int = 900_000
    model_recovers: bool = True
    fixture_model: bool = False
    flow_concurrency: int = FLOW_CONCURRENCY
    flow_map_items: int = FLOW_MAP_ITEMS
    flow_loop_iterations: int = FLOW_LOOP_ITERATIONS
    sweep_ms: int = SWEEP_MS
    fleet_urls: tuple[str, ...] = ()
    log_level: str = "info"
    ping_ms: int = PING_MS
    silence_ms: int = SILENCE_MS
    abort_grace_ms: int = ABORT_GRACE_MS
    repeat_pauses_s: tuple[float, ...] = REPEAT_PAUSES_S

    def flow_limits(self) -> dict[str, int]:
        """What every flow is told of its limits (flow-engine 10)."""
        return {
            "maxConcurrency": self.flow_concurrency,
            "maxMapItems": self.flow_map_items,
            "maxLoopIterations": self.flow_loop_iterations,
        }


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads the environment. Raises SettingsError."""
    env = Environment(environ)
    state = env.text("WHIPPLETREE_STATE_DIR", "./.whippletree") or ""
    http = _address(env, "WHIPPLETREE_CORE_HTTP_LISTEN", Address("127.0.0.1", 4000))
    harness = _address(env, "WHIPPLETREE_CORE_HARNESS_LISTEN", Address("127.0.0.1", 4200))
    if http.port and http.port == harness.port and http.host == harness.host:
        env.problem("WHIPPLETREE_CORE_HTTP_LISTEN and WHIPPLETREE_CORE_HARNESS_LISTEN must differ.")
    token = env.secret("NYLORUN_HARNESS_TOKEN")
    if token is None:
        if not env.problems:
            env.problem("NYLORUN_HARNESS_TOKEN (or NYLORUN_HARNESS_TOKEN_FILE) is required.")
    elif re.search(r"\s", token):
        env.problem("NYLORUN_HARNESS_TOKEN must not contain white space.")
    core_token = env.secret("WHIPPLETREE_CORE_TOKEN")
    if core_token is None and not is_loopback(http.host):
        env.problem(
            "WHIPPLETREE_CORE_TOKEN (or WHIPPLETREE_CORE_TOKEN_FILE) is required when "
            "WHIPPLETREE_CORE_HTTP_LISTEN is not a loopback address."
        )
    harness_hosts = _hosts(env, "NYLORUN_HARNESS_ALLOWED_HOSTS")
    if not harness_hosts and not is_loopback(harness.host):
        env.problem(
            "NYLORUN_HARNESS_ALLOWED_HOSTS is required when WHIPPLETREE_CORE_HARNESS_LISTEN is not a "
            "loopback address: the name:port by which harnesses reach it."
        )
    settings = Settings(
        http=http,
        harness=harness,
        harness_token=token or "",
        core_token=core_token,
        http_hosts=_hosts(env, "WHIPPLETREE_CORE_ALLOWED_HOSTS"),
        harness_hosts=harness_hosts,
        database=env.text("WHIPPLETREE_CORE_DB") or str(Path(state) / "core.db"),
        full_sync=env.choice("WHIPPLETREE_CORE_SYNC", ("NORMAL", "FULL"), "NORMAL") == "FULL",
        lease_ms=env.integer("WHIPPLETREE_CORE_LEASE_MS", 30_000, 100, _DAY_MS),
        hold_ms=env.integer("WHIPPLETREE_CORE_HOLD_MS", 5_000, 0, _DAY_MS),
        deadline_ms=env.integer("WHIPPLETREE_CORE_DEADLINE_MS", 3_000_000, 100, _DAY_MS),
        action_timeout_ms=env.integer("WHIPPLETREE_CORE_ACTION_TIMEOUT_MS", 60_000, 100, _DAY_MS),
        run_token_ms=env.integer("WHIPPLETREE_CORE_RUN_TOKEN_MS", 900_000, 1_000, _DAY_MS),
        model_recovers=env.flag("WHIPPLETREE_CORE_MODEL_RECOVERS", True),
        fixture_model=env.flag("WHIPPLETREE_CORE_FIXTURE_MODEL", False),
        fleet_urls=_urls(env, "WHIPPLETREE_FLEET_URLS"),
        flow_concurrency=env.integer("NYLORUN_FLOW_MAX_CONCURRENCY", FLOW_CONCURRENCY, 1, MAX_FLOW_LIMIT),
        flow_map_items=env.integer("NYLORUN_FLOW_MAX_MAP_ITEMS", FLOW_MAP_ITEMS, 1, MAX_FLOW_LIMIT),
        flow_loop_iterations=env.integer(
            "NYLORUN_FLOW_MAX_LOOP_ITERATIONS", FLOW_LOOP_ITERATIONS, 1, MAX_FLOW_LIMIT
        ),
        sweep_ms=env.integer("WHIPPLETREE_CORE_SWEEP_MS", SWEEP_MS, 100, _DAY_MS),
        log_level=env.choice("NYLORUN_LOG_LEVEL", ("debug", "info"), "info"),
    )
    env.finish()
    return settings


def _address(env: Environment, name: str, default: Address) -> Address:
    text = env.text(name)
    if text is None:
        return default
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65_535:
        env.problem(f"{name} must be host:port.")
        return default
    return Address(match[1].strip("[]"), int(match[2]))


def _urls(env: Environment, name: str) -> tuple[str, ...]:
    found = []
    for part in (env.text(name) or "").split(","):
        url = part.strip().rstrip("/")
        if not url:
            continue
        if re.fullmatch(r"https?://[^\s/?#@]+", url) is None:
            env.problem(f"{name} is a comma list of http addresses such as http://127.0.0.1:4300.")
        found.append(url)
    return tuple(found)


def _hosts(env: Environment, name: str) -> tuple[str, ...]:
    return tuple(host for part in (env.text(name) or "").split(",") if (host := part.strip()))
