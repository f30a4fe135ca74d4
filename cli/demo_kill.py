"""`whippletree demo --kill`: kills processes around a tool call and counts how often the tool ran."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cli.core_client import CoreClient, Document, core_token
from cli.model_script import DEFAULT_ANSWERS, Entry
from cli.running_stack import RunningStack
from cli.stack import CORE, GATEWAY, MCP

AGENT: Final = "post"
LEASE_MS: Final = 1500
"""A killed gateway's run is given to the next one when its lease has lapsed."""
THINKING_MS: Final = 2000
"""How long the scripted model takes after the first letter: the gateway is killed meanwhile."""
BOUND_S: Final = 60.0
POLL_S: Final = 0.02
SETTINGS: Final = {CORE: {"WHIPPLETREE_CORE_LEASE_MS": str(LEASE_MS)}}
FIRST, SECOND, THIRD = (
    "Send Mara a letter.",
    "Send Jonas a registered letter.",
    "Good. Leave it at that.",
)


class NotOnce(Exception):
    """A tool ran more or less than once; the text says so."""


def answers() -> list[Entry]:
    """What the scripted model says."""
    return [
        _entry(0, FIRST, _call("send_letter", "Mara")),
        _entry(1, FIRST, "The letter to Mara is sent.", delayMs=THINKING_MS),
        _entry(0, SECOND, _call("send_registered_letter", "Jonas")),
        _entry(0, THIRD, "As you wish. I do not send it a second time."),
        *DEFAULT_ANSWERS,
    ]


def _entry(step: int, text: str, answer: Any, **more: Any) -> Entry:
    # `text` is the last item of the prompt: of a step behind a tool call that is the tool's result.
    return {"agent": AGENT, "step": step, **({"text": text} if step == 0 else {}), "answer": answer, **more}


def _call(tool: str, to: str) -> Document:
    call = {"type": "tool-call", "id": f"call-{to}", "name": f"post__{tool}", "args": {"to": to}}
    return {"output": [call], "finishReason": "tool-calls"}


def manifest(file: Path) -> Document:
    """The agent, with the server that writes letters into the file."""
    return {
        "manifestSchemaVersion": 4,
        "id": AGENT,
        "name": "Post clerk",
        "capabilities": [
            {
                "id": "letters",
                "type": "agent",
                "instructions": ["You send letters."],
                "mcpServers": {
                    "post": {
                        "name": "post",
                        "type": "stdio",
                        "command": sys.executable,
                        "args": ["-m", "cli.demo_kill_server", str(file)],
                    }
                },
            }
        ],
    }


def write_script(folder: Path) -> Path:
    """The file with the model's answers."""
    path = folder / "letters-script.json"
    path.write_text(json.dumps({"answers": answers()}), encoding="utf-8")
    return path


async def kill_turns(stack: RunningStack) -> None:
    """Three turns, two kills. Raises NotOnce, CoreError, TimeoutError."""
    letters = stack.plan.state.path / "letters.txt"
    async with CoreClient(stack.plan.core_url(), token=core_token(stack.plan.environ)) as core:
        await core.put_agent(AGENT, manifest(letters))
        session = await core.create_session(AGENT)
        async with asyncio.timeout(BOUND_S):
            await _killed_after(stack, core, session)
            _count(letters, "Mara")
            await _killed_meanwhile(stack, core, session, letters)
            _count(letters, "Jonas")
    print(f"\nWhat stands in {letters.name}:")
    for line in letters.read_text("utf-8").splitlines():
        print(f"  {line}")
    print("Each letter was sent once.")


async def _killed_after(stack: RunningStack, core: CoreClient, session: str) -> None:
    print("\n1. The gateway is killed right after a tool ran.\n")
    print(f"You:   {FIRST}", flush=True)
    await core.send_message(session, FIRST)
    async for name, event in core.events(session):
        payload = event.get("payload") or {}
        match name:
            case "tool.completed":
                print("       The agent sent the letter; the journal has the outcome.")
                _kill(stack, GATEWAY)
            case "run.lapsed":
                print("       The core waited for the lease of the killed gateway to lapse.", flush=True)
            case "run.started" if payload.get("replayed"):
                print(
                    f"       The gateway is back, and takes {payload['replayed']} outcomes from the journal; "
                    "nothing of them is done again.",
                    flush=True,
                )
            case "turn.completed":
                print(f"Agent: {payload['output']}", flush=True)
                return
            case "turn.failed" | "turn.uncertain":
                raise NotOnce(f"the turn ended as {name}")


async def _killed_meanwhile(stack: RunningStack, core: CoreClient, session: str, letters: Path) -> None:
    print("\n2. The MCP pool is killed while a tool runs.\n")
    print(f"You:   {SECOND}", flush=True)
    seen = int((await core.session(session))["lastSeq"])
    await core.send_message(session, SECOND)
    await _until(lambda: "Jonas" in letters.read_text("utf-8"))
    print("       The letter is sent, and the tool has not answered yet.")
    _kill(stack, MCP)
    async for name, _ in core.events(session, seen):
        if name == "turn.uncertain":
            break
        if name in ("turn.completed", "turn.failed"):
            raise NotOnce(f"the turn ended as {name}")
    print(
        "       Nobody can know whether the letter went out, so it is not sent again: the turn is `uncertain`\n"
        "       and waits for a person. You look, see that it did, and cancel the turn.",
        flush=True,
    )
    await core.cancel(session)
    print(f"You:   {THIRD}", flush=True)
    turn = await core.send_message(session, THIRD)
    end = await core.turn_end(session, turn)
    if end != "turn.completed":
        raise NotOnce(f"the last turn ended as {end}")
    print(f"Agent: {(await core.session(session))['lastTurn']['result']['output']}", flush=True)


def _kill(stack: RunningStack, name: str) -> None:
    pid = stack.supervisor.pid(name)
    if pid is None:
        raise NotOnce(f"{name} does not run")
    os.kill(pid, signal.SIGKILL)
    print(f"       {name} (process {pid}) is killed with SIGKILL.", flush=True)


def _count(letters: Path, to: str) -> None:
    lines = [line for line in letters.read_text("utf-8").splitlines() if line == f"to {to}"]
    if len(lines) != 1:
        raise NotOnce(f"the letter to {to} was sent {len(lines)} times")


async def _until(check: Callable[[], bool]) -> None:
    """Looks at a file that another program writes, within the bound of the demo."""
    while True:
        if check():
            return
        await asyncio.sleep(POLL_S)
