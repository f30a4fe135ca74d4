"""`whippletree demo`: one turn through all five processes, and what it did."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from cli import demo_kill, flow_example
from cli.core_client import CoreClient, CoreError, Document, core_token
from cli.demo_agent import QUESTION, manifest
from cli.demo_kill import NotOnce
from cli.model_choice import ModelChoiceError, choose_model
from cli.model_script import write_default_script
from cli.output import format_line
from cli.ports import PortError, free_ports
from cli.running_stack import RunningStack, running_stack
from cli.stack import StackPlan, core_url
from cli.state import StateError, open_state
from cli.timeline import timeline
from services.common.process import StartFailed

AGENT: Final = "demo"
FLOW: Final = "digest"
TURN_BOUND_S: Final = 60.0
REAL_TURN_BOUND_S: Final = 900.0
OWN_SETTINGS: Final = frozenset(
    {
        "WHIPPLETREE_MODEL_ROUTE",
        "WHIPPLETREE_MODEL_SCRIPT",
        "WHIPPLETREE_CORE_FIXTURE_MODEL",
        "WHIPPLETREE_CORE_TOKEN",
        "WHIPPLETREE_CORE_TOKEN_FILE",
    }
)
"""What the demo decides itself, whatever stands in the environment for `up`: its turn has its own answers."""
KEPT_LINES: Final = 200
_MODEL: Final = "Model: scripted answers; --model names a real one."


class DemoFailed(Exception):
    """The turn did not complete; the text is the reason in one line."""


def run_demo(*, stay: bool, model: str | None = None, flow: bool = False, kill: bool = False) -> int:
    """The exit code: 0 when the turn completed, else 1 with one line on stderr. `flow` runs the example flow,
    `kill` kills processes around tool calls."""
    with tempfile.TemporaryDirectory(prefix="whippletree-demo-") as folder:
        try:
            state = open_state(Path(folder))
            ports, environ = free_ports(), demo_environment(os.environ)
            plan = StackPlan(
                state=state,
                ports=ports,
                environ=environ | {"WHIPPLETREE_CORE_DB": str(state.database)},
                model_script=_script(state.path, flow=flow, kill=kill),
                model=None if model is None else choose_model(model, environ, state.path, core_url(ports)),
                overrides=demo_kill.SETTINGS if kill else {},
            )
            turn = demo_kill.kill_turns if kill else _flow_turn if flow else _turn
            return asyncio.run(_demo(plan, stay, turn))
        except TimeoutError:
            print("The demo failed: it did not end in time", file=sys.stderr)
            return 1
        except (
            DemoFailed,
            NotOnce,
            CoreError,
            StartFailed,
            StateError,
            PortError,
            ModelChoiceError,
        ) as error:
            print(f"The demo failed: {error}", file=sys.stderr)
            return 1


def _script(folder: Path, *, flow: bool, kill: bool) -> Path:
    if kill:
        return demo_kill.write_script(folder)
    return flow_example.script() if flow else write_default_script(folder)


def demo_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would make the demo another one."""
    return {name: value for name, value in environ.items() if name not in OWN_SETTINGS}


async def _demo(plan: StackPlan, stay: bool, turn: Callable[[RunningStack], Awaitable[None]]) -> int:
    log: deque[str] = deque(maxlen=KEPT_LINES)

    def keep(name: str, line: str) -> None:
        log.append(format_line(name, line, colour=False))

    try:
        async with running_stack(plan, keep) as stack:
            print("Starting five processes: dev-core, model-executor, mcp-pool, sandbox-manager, gateway ...")
            await stack.ready()
            print(_MODEL if plan.model is None else plan.model.says, flush=True)
            await turn(stack)
            if stay:
                print(f"\nStaying up: {plan.core_url()} until Ctrl-C.", flush=True)
                await stack.ended()
            else:
                print("\nStopping the five processes ...", flush=True)
    except (DemoFailed, NotOnce, CoreError, StartFailed, TimeoutError):
        print("\n".join(log), file=sys.stderr)
        raise
    print("Done.")
    return 0


async def _turn(stack: RunningStack) -> None:
    async with CoreClient(stack.plan.core_url(), token=core_token(stack.plan.environ)) as core:
        await core.put_agent(AGENT, manifest(sys.executable))
        print(f"\nYou:   {QUESTION}", flush=True)
        output, effects = await _until_completed(core, stack, AGENT, QUESTION)
    print(f"Agent: {output}\n")
    print("\n".join(timeline(effects)))


async def _flow_turn(stack: RunningStack) -> None:
    """The example flow: its functions are served by this process."""
    document = flow_example.document()
    runner = web.AppRunner(flow_example.endpoint(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/actions"
        async with CoreClient(stack.plan.core_url(), token=core_token(stack.plan.environ)) as core:
            await core.put_agent(FLOW, flow_example.manifest(), url)
            print(f"\nDocument: {document.splitlines()[0].lstrip('# ')}, {len(document.split())} words")
            print(
                "Flow:     split it, sum up the parts at the same time, write a brief, check its length",
                flush=True,
            )
            output, effects = await _until_completed(core, stack, FLOW, document)
    finally:
        await runner.cleanup()
    print(f"Brief:    {output}\n")
    print("\n".join(timeline(effects)))


async def _until_completed(
    core: CoreClient, stack: RunningStack, agent: str, message: str
) -> tuple[str, list[Document]]:
    """A turn of a new session: its output and its effects. Raises DemoFailed and CoreError."""
    session = await core.create_session(agent)
    turn = await core.send_message(session, message)
    try:
        async with asyncio.timeout(TURN_BOUND_S if stack.plan.model is None else REAL_TURN_BOUND_S):
            end = await core.turn_end(session, turn)
    except TimeoutError:
        raise DemoFailed("the turn did not end in time") from None
    effects = await core.effects(session, turn)
    view = await core.session(session)
    if end != "turn.completed":
        print("\n".join(("", *timeline(effects))), file=sys.stderr)
        raise DemoFailed(f"the turn ended as {end}{_reason(view)}")
    return str(view["lastTurn"]["result"]["output"]), effects


def _reason(view: Document) -> str:
    result = (view.get("lastTurn") or {}).get("result") or {}
    error = result.get("error") or result
    message = error.get("message") if isinstance(error, dict) else None
    return f": {message}" if message else ""
