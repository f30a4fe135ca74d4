"""The model-executor's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.common.gate_http import SILENCE_MS
from services.common.server import SECRETS, ServerSettings, read_server_settings
from services.common.settings import Environment, SettingsError
from services.model_executor.direct.config import DirectConfig
from services.model_executor.direct.config_file import ConfigInvalid, load_config
from services.model_executor.routes import ROUTE_SETTING, SCRIPT_SETTING
from services.model_executor.script import Script, ScriptInvalid, load_script

__all__ = ["SECRETS", "Settings", "SettingsError", "read_settings"]

DEFAULT_LISTEN: Final = "0.0.0.0:4410"
CONFIG_SETTING: Final = "WHIPPLETREE_MODEL_CONFIG"
ROUTES: Final = ("gate", "direct", "scripted")
WITHOUT_GATES: Final = f"Where there are no gates, set {ROUTE_SETTING}=direct or {ROUTE_SETTING}=scripted."


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The gates service: any URL of it, and model-executor 14.2 and 14.3."""

    url: str
    silence_ms: int = SILENCE_MS
    rejoins: int = 0
    renews: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """How the process listens and which route answers; each route's own part is set for that route only."""

    server: ServerSettings
    route: str
    script: Script | None = None
    gate: GateSettings | None = None
    direct: DirectConfig | None = None
    state_file: str = ""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads the environment and the script file. Raises SettingsError."""
    env = Environment(environ)
    server = read_server_settings(env, DEFAULT_LISTEN)
    route = env.choice(ROUTE_SETTING, ROUTES, "gate")
    gates_url = env.url(
        "NYLORUN_GATES_URL", ("http", "https"), required=route == "gate", without=WITHOUT_GATES
    )
    gate = GateSettings(
        url=gates_url or "",
        silence_ms=env.integer("WHIPPLETREE_GATE_SILENCE_MS", SILENCE_MS, 100, 3_600_000),
        rejoins=env.integer("WHIPPLETREE_GATE_REJOIN_ATTEMPTS", 0, 0, 5),
        renews=env.flag("WHIPPLETREE_GATE_RENEW_TOKEN", False),
    )
    script: Script | None = None
    path = env.text(SCRIPT_SETTING)
    if route == "scripted" and path is not None:
        try:
            script = load_script(path)
        except ScriptInvalid as error:
            env.problem(f"{SCRIPT_SETTING}: {error}.")
    root = env.absolute_path("NYLORUN_HARNESS_ROOT", "/harness")
    direct: DirectConfig | None = None
    config = env.text(CONFIG_SETTING)
    if route == "direct":
        direct = _direct(env, config, environ)
    env.finish()
    state_file = (direct.state_file if direct is not None else None) or f"{root}/model/state.sqlite"
    return Settings(
        server=server,
        route=route,
        script=script,
        gate=gate if route == "gate" else None,
        direct=direct,
        state_file=state_file,
    )


def _direct(env: Environment, path: str | None, environ: Mapping[str, str]) -> DirectConfig | None:
    if path is None:
        env.problem(f"{CONFIG_SETTING} is required for the route direct: a TOML file of providers.")
        return None
    try:
        return load_config(path, environ)
    except ConfigInvalid as error:
        env.problem(f"{CONFIG_SETTING}: {error}.")
        return None
