"""The settings of the MCP pool's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.common.children import StopGrace
from services.common.server import SECRETS, ServerSettings, read_server_settings
from services.common.settings import Environment, SettingsError
from services.mcp_pool.launch import HarnessRoot, base_environment
from services.mcp_pool.limits import Limits
from services.mcp_pool.seats import MAX_CONNECTIONS, MAX_PER_SESSION

__all__ = ["SECRETS", "Settings", "SettingsError", "read_settings"]

DEFAULT_LISTEN: Final = "0.0.0.0:4420"
DEFAULT_ROOT: Final = "/harness"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How the process listens, where its folders are, what servers inherit, and its limits."""

    server: ServerSettings
    root: HarnessRoot
    base_environment: Mapping[str, str]
    gates_url: str | None
    limits: Limits
    check_tools: bool
    traceparent: bool


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads the environment. Raises SettingsError."""
    env = Environment(environ)
    server = read_server_settings(env, DEFAULT_LISTEN)
    root = HarnessRoot(env.absolute_path("NYLORUN_HARNESS_ROOT", DEFAULT_ROOT))
    gates_url = env.url("NYLORUN_GATES_URL", ("http", "https"))
    limits = read_limits(env)
    check_tools = env.flag("WHIPPLETREE_MCP_CHECK_TOOLS", False)
    traceparent = env.flag("WHIPPLETREE_MCP_TRACEPARENT", False)
    env.finish()
    return Settings(
        server=server,
        root=root,
        base_environment=base_environment(environ, root),
        gates_url=gates_url,
        limits=limits,
        check_tools=check_tools,
        traceparent=traceparent,
    )


def read_limits(env: Environment) -> Limits:
    """The limits that the environment asks for; problems are noted in `env`."""

    def seconds(name: str, default: float) -> float:
        return env.integer(name, int(default * 1000), 1, _DAY_MS) / 1000

    usual = Limits()
    step = seconds("WHIPPLETREE_MCP_STOP_MS", usual.grace.after_stdin)
    return Limits(
        request=seconds("WHIPPLETREE_MCP_REQUEST_MS", usual.request),
        server=seconds("WHIPPLETREE_MCP_SERVER_MS", usual.server),
        gate_silence=seconds("WHIPPLETREE_GATE_SILENCE_MS", usual.gate_silence),
        idle=seconds("WHIPPLETREE_MCP_IDLE_MS", usual.idle),
        sweep=seconds("WHIPPLETREE_MCP_SWEEP_MS", usual.sweep),
        opening=env.integer("WHIPPLETREE_MCP_OPENING", usual.opening, 1, 1024),
        connections=env.integer(MAX_CONNECTIONS, usual.connections, 1, 100_000),
        per_session=env.integer(MAX_PER_SESSION, usual.per_session, 1, 100_000),
        calls=env.integer("WHIPPLETREE_MCP_CALLS_PER_CONNECTION", usual.calls, 1, 10_000),
        grace=StopGrace(after_stdin=step, after_terminate=step, after_kill=step),
    )
