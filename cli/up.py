"""`whippletree up`: the processes of a stack on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.gate_choice import FILE, GateChoiceError, choose_gate
from cli.model_choice import ModelChoiceError, choose_model
from cli.model_script import write_default_script
from cli.output import terminal_sink, wants_colour
from cli.ports import PortError, check_free, ports_from
from cli.running_stack import running_stack
from cli.stack import StackPlan, core_url
from cli.state import StateError, hold_state, open_state
from services.common.process import StartFailed

DEFAULT_STATE = "./.whippletree"


def state_path(environ: Mapping[str, str]) -> Path:
    """The folder in which `up` keeps its state, by WHIPPLETREE_STATE_DIR."""
    return Path(environ.get("WHIPPLETREE_STATE_DIR", "").strip() or DEFAULT_STATE)


def run_up(model: str | None = None) -> int:
    """The exit code: 0 after Ctrl-C, 1 when something could not start (one line on stderr)."""
    try:
        ports = ports_from(os.environ)
        state = open_state(state_path(os.environ))
        held = hold_state(state)
        gate = choose_gate(os.environ, state.path)
        check_free(ports, unused=() if gate is not None else ("tool_gate",))
        script = write_default_script(state.path)
        chosen = None if model is None else choose_model(model, os.environ, state.path, core_url(ports))
    except (PortError, StateError, ModelChoiceError, GateChoiceError) as error:
        print(error, file=sys.stderr)
        return 1
    plan = StackPlan(
        state=state, ports=ports, environ=dict(os.environ), model_script=script, model=chosen, gate=gate
    )
    with held:
        return asyncio.run(_up(plan))


async def _up(plan: StackPlan) -> int:
    show = terminal_sink(wants_colour())
    try:
        async with running_stack(plan, show) as stack:
            await stack.ready()
            show("up", _model(plan))
            show("up", _gate(plan))
            url = plan.core_url()
            show("up", f"Ready. Page and HTTP API: {url}  (described at {url}/openapi.json)")
            show("up", f"State is kept in {plan.state.path}. Ctrl-C stops everything, a second one at once.")
            await stack.ended()
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _gate(plan: StackPlan) -> str:
    """Who reaches remote MCP servers."""
    if plan.gate is None:
        return (
            f"Remote MCP servers: through the gates service at {plan.environ['NYLORUN_GATES_URL'].strip()}."
        )
    file = plan.gate.config
    headers = (
        f"headers of {file}"
        if file is not None
        else f"no credentials; {plan.state.path / FILE} may give some"
    )
    return f"Remote MCP servers: through the Tool Gate at {plan.gate_url()}, {headers}."


def _model(plan: StackPlan) -> str:
    """Which model answers."""
    if plan.model is not None:
        return plan.model.says
    route = plan.environ.get("WHIPPLETREE_MODEL_ROUTE", "").strip() or "scripted"
    return (
        "Model: scripted answers; --model names a real one."
        if route == "scripted"
        else f"Model route: {route}."
    )
