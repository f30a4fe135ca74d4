"""`whippletree up`: the five processes on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from cli.model_script import write_default_script
from cli.output import terminal_sink, wants_colour
from cli.ports import PortError, check_free, ports_from
from cli.running_stack import running_stack
from cli.stack import StackPlan
from cli.state import StateError, open_state
from cli.supervisor import StartFailed

DEFAULT_STATE = "./.whippletree"


def run_up() -> int:
    """The exit code: 0 after Ctrl-C, 1 when something could not start (one line on stderr)."""
    try:
        ports = ports_from(os.environ)
        check_free(ports)
        state = open_state(Path(os.environ.get("WHIPPLETREE_STATE_DIR", "").strip() or DEFAULT_STATE))
        script = write_default_script(state.path)
    except (PortError, StateError) as error:
        print(error, file=sys.stderr)
        return 1
    plan = StackPlan(state=state, ports=ports, environ=dict(os.environ), model_script=script)
    return asyncio.run(_up(plan))


async def _up(plan: StackPlan) -> int:
    show = terminal_sink(wants_colour())
    try:
        async with running_stack(plan, show) as stack:
            await stack.ready()
            show("up", f"Ready. HTTP API: {plan.core_url()}  (described at {plan.core_url()}/openapi.json)")
            show("up", f"State is kept in {plan.state.path}. Ctrl-C stops everything, a second one at once.")
            await stack.ended()
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0
