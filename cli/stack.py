"""The processes of a stack on this machine: what each one is started with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.gate_choice import GateChoice
from cli.model_choice import ModelChoice
from cli.ports import HOST, Ports
from cli.state import StateFolder

BASELINE = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "SSL_CERT_FILE")
"""What every process takes over of the environment, besides LC_*, OTEL_* and the project's own settings."""

CORE, MODEL, MCP, SANDBOX, GATEWAY = "dev-core", "model-executor", "mcp-pool", "sandbox-manager", "gateway"
GATE = "tool-gate"
ORDER = (CORE, GATE, MODEL, MCP, SANDBOX, GATEWAY)
"""Start order; the gateway stops first, so that it gives its runs back, and the development core last."""


MCP_SETTINGS = (
    "WHIPPLETREE_MCP_REQUEST_MS",
    "WHIPPLETREE_MCP_SERVER_MS",
    "WHIPPLETREE_MCP_IDLE_MS",
    "WHIPPLETREE_MCP_SWEEP_MS",
    "WHIPPLETREE_MCP_OPENING",
    "WHIPPLETREE_MCP_MAX_CONNECTIONS",
    "WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION",
    "WHIPPLETREE_MCP_CALLS_PER_CONNECTION",
    "WHIPPLETREE_MCP_CHECK_TOOLS",
    "WHIPPLETREE_MCP_TRACEPARENT",
    "WHIPPLETREE_MCP_STOP_MS",
    "WHIPPLETREE_GATE_SILENCE_MS",
)
SANDBOX_SETTINGS = (
    "WHIPPLETREE_SANDBOX_DRIVER",
    "WHIPPLETREE_SANDBOX_UID",
    "WHIPPLETREE_SANDBOX_DISK_FREE",
    "WHIPPLETREE_SANDBOX_DISK_BYTES",
)
MODEL_SETTINGS = (
    "WHIPPLETREE_MODEL_ROUTE",
    "WHIPPLETREE_MODEL_SCRIPT",
    "WHIPPLETREE_MODEL_CONFIG",
    "WHIPPLETREE_GATE_SILENCE_MS",
    "WHIPPLETREE_GATE_REJOIN_ATTEMPTS",
    "WHIPPLETREE_GATE_RENEW_TOKEN",
)
GATE_SETTINGS = (
    "WHIPPLETREE_TOOL_GATE_REQUEST_MS",
    "WHIPPLETREE_TOOL_GATE_IDLE_MS",
    "WHIPPLETREE_TOOL_GATE_SWEEP_MS",
    "WHIPPLETREE_TOOL_GATE_DRAIN_MS",
    "WHIPPLETREE_TOOL_GATE_TRACEPARENT",
    "WHIPPLETREE_CORE_TOKEN",
    "WHIPPLETREE_CORE_TOKEN_FILE",
    "NYLORUN_LOG_LEVEL",
)
RECORD_SETTINGS = ("WHIPPLETREE_RECORD_DIR", "WHIPPLETREE_RECORD_FILE_BYTES", "WHIPPLETREE_RECORD_DIR_BYTES")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How one process is started."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What decides the processes. `gate` is the Tool Gate to start, None for none.

    `overrides` adds settings by process name, over everything else.
    """

    state: StateFolder
    ports: Ports
    environ: Mapping[str, str]
    model_script: Path | None = None
    model: ModelChoice | None = None
    gate: GateChoice | None = None
    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def core_url(self) -> str:
        """The development core's HTTP API and console."""
        return core_url(self.ports)

    def gate_url(self) -> str:
        """The Tool Gate."""
        return f"http://{HOST}:{self.ports.tool_gate}"

    def health_url(self) -> str:
        """The gateway's health address."""
        return f"http://{HOST}:{self.ports.health}"


def core_url(ports: Ports) -> str:
    """The development core's HTTP API at these ports."""
    return f"http://{HOST}:{ports.core_http}"


def process_specs(plan: StackPlan) -> tuple[ProcessSpec, ...]:
    """The processes in start order."""
    return tuple(
        ProcessSpec(
            name=name,
            # -P: `up` runs in people's own folders, and one of theirs may be called `services` or `cli`.
            argv=(sys.executable, "-P", "-m", "cli.main", name),
            environ={
                **_inherited(plan.environ),
                **_metrics_port(plan.environ, name),
                **_settings(plan, name),
                **plan.overrides.get(name, {}),
            },
        )
        for name in ORDER
        if name != GATE or plan.gate is not None
    )


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in BASELINE or name.startswith(("LC_", "OTEL_"))
    } | {"PYTHONUNBUFFERED": "1"}


METRICS_ORDER = (GATEWAY, MODEL, MCP, SANDBOX, GATE)
"""Which process serves metrics on which port: the first one on the port that is set, the others behind it."""


def _metrics_port(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Five processes on one machine can't serve metrics on one port; 0 lets each find a free one."""
    text = environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or "9464"
    is_served = "prometheus" in environ.get("OTEL_METRICS_EXPORTER", "")
    if not is_served or name not in METRICS_ORDER or not (text.isascii() and text.isdigit()) or text == "0":
        return {}
    return {"OTEL_EXPORTER_PROMETHEUS_PORT": str(int(text) + METRICS_ORDER.index(name))}


def _settings(plan: StackPlan, name: str) -> dict[str, str]:
    ports, state = plan.ports, plan.state
    if name == CORE:
        given = {
            k: v for k, v in plan.environ.items() if k.startswith(("WHIPPLETREE_CORE_", "NYLORUN_FLOW_MAX_"))
        }
        return given | {
            "WHIPPLETREE_CORE_HTTP_LISTEN": f"{HOST}:{ports.core_http}",
            "WHIPPLETREE_CORE_HARNESS_LISTEN": f"{HOST}:{ports.core_harness}",
            "WHIPPLETREE_FLEET_URLS": f"http://127.0.0.1:{ports.health}",
            "WHIPPLETREE_CORE_DB": given.get("WHIPPLETREE_CORE_DB") or str(state.database),
            "WHIPPLETREE_STATE_DIR": str(state.path),
            "NYLORUN_HARNESS_TOKEN_FILE": str(state.token_file("harness")),
            **_taken_over(plan.environ, "NYLORUN_LOG_LEVEL"),
        }
    if name == GATE:
        return {
            "WHIPPLETREE_TOOL_GATE_LISTEN": f"{HOST}:{ports.tool_gate}",
            "WHIPPLETREE_TOOL_GATE_CORE_URL": plan.core_url(),
            "WHIPPLETREE_TOOL_GATE_DB": str(state.path / "tool-gate.db"),
            **_taken_over(plan.environ, *GATE_SETTINGS),
            **(plan.gate.settings(plan.environ) if plan.gate is not None else {}),
        }
    gate = {} if plan.gate is None else {"NYLORUN_GATES_URL": plan.gate_url()}
    if name == GATEWAY:
        # It asks no gate itself; its log says by which one remote servers are reached.
        return gate | {
            "NYLORUN_HARNESS_URL": f"ws://{HOST}:{ports.core_harness}/nylorun/harness/v1",
            "NYLORUN_HARNESS_TOKEN_FILE": str(state.token_file("harness")),
            "NYLORUN_HARNESS_HEALTH_PORT": str(ports.health),
            "NYLORUN_MODEL_EXECUTOR_TARGET": f"{HOST}:{ports.model_executor}",
            "NYLORUN_MCP_POOL_TARGET": f"{HOST}:{ports.mcp_pool}",
            "NYLORUN_SANDBOX_MANAGER_TARGET": f"sandbox-0={HOST}:{ports.sandbox_manager}",
            "NYLORUN_MODEL_EXECUTOR_GRPC_TOKEN_FILE": str(state.token_file(MODEL)),
            "NYLORUN_MCP_POOL_GRPC_TOKEN_FILE": str(state.token_file(MCP)),
            "NYLORUN_SANDBOX_MANAGER_GRPC_TOKEN_FILE": str(state.token_file(SANDBOX)),
            **_taken_over(plan.environ, "NYLORUN_LOG_LEVEL", "NYLORUN_GATES_URL", "NYLORUN_STOP_GRACE_MS"),
            **_taken_over(plan.environ, *RECORD_SETTINGS, "WHIPPLETREE_GATEWAY_VIEW_PORT"),
        }
    common = {
        "NYLORUN_GRPC_LISTEN": f"{HOST}:{getattr(ports, name.replace('-', '_'))}",
        "NYLORUN_GRPC_TOKEN_FILE": str(state.token_file(name)),
        **_taken_over(plan.environ, "NYLORUN_LOG_LEVEL", "NYLORUN_GATES_URL", "NYLORUN_GRPC_REFLECTION"),
    }
    common["NYLORUN_HARNESS_ROOT"] = str(state.root)
    if name == MODEL:
        return common | _model_settings(plan)
    if name == SANDBOX:
        return common | _taken_over(plan.environ, *SANDBOX_SETTINGS)
    return common | gate | _taken_over(plan.environ, *MCP_SETTINGS)


def _model_settings(plan: StackPlan) -> dict[str, str]:
    given = {"WHIPPLETREE_GATE_REJOIN_ATTEMPTS": "1", "WHIPPLETREE_GATE_RENEW_TOKEN": "on"}
    given |= _taken_over(plan.environ, *MODEL_SETTINGS)
    if plan.model is not None:
        return given | plan.model.settings()
    if plan.model_script is None or "WHIPPLETREE_MODEL_ROUTE" in given:
        return given
    ours = {"WHIPPLETREE_MODEL_ROUTE": "scripted", "WHIPPLETREE_MODEL_SCRIPT": str(plan.model_script)}
    return ours | given


def _taken_over(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: environ[name] for name in names if environ.get(name, "").strip()}
