"""A turn through the whole harness: hooks on the Action endpoint, and an agent as a tool with tools of its own.

The core runs in this process, and the gateway with its three services in a child. The model is scripted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cli.demo_agent import sandbox_tools
from cli.ports import free_ports
from tests.dev_core.endpoint import Endpoint, endpoint
from tests.dev_core.support import CoreClient, running_core
from tests.engine.support import agent_of, call, capability, delegate, text
from tests.leaks.watch import secret

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
COUNTING_SERVER = ROOT / "tests" / "system" / "counting_server.py"
BOUND_S = 60.0
TOKEN = secret("f0e1d2c3b4a59687" * 4)
ENDED = ("completed", "failed", "cancelled", "uncertain", "paused")

SCOUT = agent_of(
    capability(
        "search",
        hooks="before-turn",
        mcpServers={
            "echo": {
                "name": "echo",
                "type": "stdio",
                "command": sys.executable,
                "args": [str(COUNTING_SERVER)],
            }
        },
    ),
    capability("box", *sandbox_tools(), sandbox={"network": {"preset": "none"}}),
    id="scout",
    description="Finds things.",
)
BOSS = agent_of(
    capability("rules", hooks="before-turn after-step"), capability("team", delegate(SCOUT)), id="boss"
)

ANSWERS = [
    {"text": "go", "step": 0, "answer": {"output": [call("d1", "scout", task="look")]}},
    {
        "text": "look",
        "step": 0,
        "answer": {
            "output": [
                call("k1", "echo__echo", text="hello"),
                call("k2", "bash", command="echo from the box > note.txt && cat note.txt"),
            ]
        },
    },
    {"text": "from the box", "step": 1, "answer": {"output": [text("The box says hello.")]}},
    {"text": "The box says hello.", "step": 1, "answer": {"output": [text("Done.")]}},
]


@contextlib.asynccontextmanager
async def harness(core: CoreClient, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The harness as one process, at this core."""
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": ANSWERS}))
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "NYLORUN_HARNESS_URL": core.ready.harness,
        "NYLORUN_HARNESS_TOKEN": TOKEN,
        "NYLORUN_GATES_URL": "http://127.0.0.1:9/",
        "NYLORUN_HARNESS_ROOT": str(folder / "root"),
        "NYLORUN_HARNESS_HEALTH_PORT": str(free_ports().health),
        "WHIPPLETREE_MODEL_ROUTE": "scripted",
        "WHIPPLETREE_MODEL_SCRIPT": str(script),
        "WHIPPLETREE_SANDBOX_DRIVER": "emulated",
    }
    command = [sys.executable, "-m", "cli.main", "all-in-one"]
    with open(folder / "harness.log", "wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=settings, stdout=log, stderr=asyncio.subprocess.STDOUT
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


def answering(results: dict[str, dict[str, Any]]) -> Any:
    """Answers hooks by their point."""

    async def script(intent: dict[str, Any]) -> web.StreamResponse:
        hook = intent["hook"]
        point = f"{hook['at']}-{hook['scope']}"
        return web.json_response({"value": {"results": results.get(point, {})}})

    return script


async def ended(core: CoreClient, session_id: str, process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The session once its turn is over."""
    async with asyncio.timeout(BOUND_S):
        while True:
            assert process.returncode is None, "the harness ended"
            view = await core.view(session_id)
            if view["status"] in ENDED:
                return view
            await asyncio.sleep(0.05)


async def play(folder: Path, actions: Endpoint, results: dict[str, dict[str, Any]]) -> tuple[Any, Any, Any]:
    """One turn: the session's view, its effects and its log."""
    actions.script = answering(results)
    async with running_core(hold_ms=5000, harness_token=TOKEN) as core, harness(core, folder) as process:
        await core.agent(BOSS, actions={"url": actions.url})
        session_id = await core.session("boss")
        await core.say(session_id, "go")
        view = await ended(core, session_id, process)
        return view, await core.effects(session_id), await core.log(session_id)


async def test_a_child_uses_its_own_tools_and_hooks_reach_the_endpoint(tmp_path: Path) -> None:
    async with endpoint() as actions:
        results = {"before-turn": {"rules": {"state": {"seen": 1}}}}
        view, effects, log = await play(tmp_path, actions, results)
    assert view["status"] == "completed", (tmp_path / "harness.log").read_text()[-4000:]
    assert view["lastTurn"]["result"]["output"] == "Done."
    kinds: dict[str, list[str]] = {}
    for name, effect in effects.items():
        kinds.setdefault(f"{effect['kind']} {effect['runner']}", []).append(name)
    assert {kind: len(names) for kind, names in kinds.items()} == {
        "model model": 4,
        "hook action": 4,
        "delegation core": 2,
        "tool mcp": 1,
        "tool sandbox": 1,
    }
    (mcp,) = kinds["tool mcp"]
    started, settled = kinds["delegation core"]
    delegation_id = started.split(":")[1]
    assert mcp.startswith(f"tool:{delegation_id}/invocation_")
    assert settled == f"delegation:{delegation_id}:settled"
    asked = [f"{intent['hook']['at']}-{intent['hook']['scope']}" for intent in actions.intents]
    assert asked == ["before-turn", "after-step", "before-turn", "after-step"]
    assert actions.intents[2]["agent"]["id"] == "scout"
    assert actions.intents[3]["input"]["state"] == {"seen": 1}
    types = [event["type"] for event in log]
    assert types.index("delegation.started") < types.index("delegation.completed")
    assert types.count("hook.completed") == 4
    told = next(event for event in log if event["type"] == "delegation.completed")
    assert told["payload"]["input"] == {
        "status": "completed",
        "outcome": {"kind": "completed", "output": "The box says hello."},
    }


async def test_a_hook_on_the_endpoint_can_stop_a_turn(tmp_path: Path) -> None:
    async with endpoint() as actions:
        results = {
            "after-step": {"rules": {"deny": [{"id": "d1", "reason": "from the box"}], "block": "Not today."}}
        }
        view, effects, _ = await play(tmp_path, actions, results)
    assert view["status"] == "failed", (tmp_path / "harness.log").read_text()[-4000:]
    assert view["lastTurn"]["result"]["error"] == {"code": "dynamics.blocked", "message": "Not today."}
    assert {effect["kind"] for effect in effects.values()} == {"hook", "model"}
