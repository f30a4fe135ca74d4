"""Every example runs as its page says, over real processes; scripts answer in place of a model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from cli.core_client import CoreClient
from cli.model_choice import choose_model
from cli.ports import free_ports
from cli.running_stack import RunningStack, running_stack
from cli.stack import StackPlan, core_url
from cli.state import open_state
from tests.docs.pages import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
EXAMPLES = ROOT / "examples"
SCRIPTED = ("two-servers", "approvals", "sandbox")


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def scripts(folder: Path) -> Path:
    """The scripts of all examples in one file: each answers for agents of its own."""
    answers = [
        entry
        for name in SCRIPTED
        for entry in json.loads((EXAMPLES / name / "script.json").read_text())["answers"]
    ]
    path = folder / "script.json"
    path.write_text(json.dumps({"answers": [*answers, {"answer": "Hello."}]}))
    return path


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RunningStack]:
    plan = StackPlan(
        state=open_state(tmp_path / "state"),
        ports=free_ports(),
        environ={"PATH": "/usr/bin:/bin"},
        model_script=scripts(tmp_path),
    )
    async with running_stack(plan, lambda name, line: None) as running:
        await running.ready()
        yield running


async def command(stack: RunningStack, *words: str) -> tuple[int, str]:
    """What a person types, and what is printed on both streams."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli.main", *words, "--core", stack.plan.core_url()],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


async def test_the_scripted_examples(stack: RunningStack, tmp_path: Path) -> None:
    code, said = await command(stack, "run", "hello", "Hello!", "--put", "examples/smallest/agent.json")
    assert (code, said.splitlines()[-1]) == (0, "Hello.")

    clerk = tmp_path / "clerk.json"
    clerk.write_text(json.dumps(module("two-servers/agent.py").MANIFEST))
    code, said = await command(stack, "run", "clerk", "How is it?", "--put", str(clerk), "--effects")
    assert (code, said.splitlines()[-1]) == (0, "Order A-1002 is open. I made a note of it.")
    assert [
        name for name in ("orders__get_order", "notes__list_notes", "notes__add_note") if name in said
    ] == [
        "orders__get_order",
        "notes__list_notes",
        "notes__add_note",
    ]
    assert "No notes." in said
    assert "Kept." in said

    code, said = await command(
        stack, "run", "builder", "Write a note.", "--put", "examples/sandbox/agent.json", "--effects"
    )
    assert code == 0, said
    assert "bash" in said


@pytest.mark.parametrize(
    ("approved", "end"), [(True, "The letter to Mara is out."), (False, "I did not send it.")]
)
async def test_the_example_of_approvals(stack: RunningStack, approved: bool, end: str) -> None:
    body = json.loads((EXAMPLES / "approvals" / "agent.json").read_text())
    async with (
        TestServer(module("approvals/endpoint.py").app) as server,
        CoreClient(stack.plan.core_url()) as core,
    ):
        await core.put("secretary", body | {"actions": {"url": f"http://127.0.0.1:{server.port}/actions"}})
        session = await core.create_session("secretary")
        turn = await core.send_message(session, "Tell Mara that the oak has come.")
        assert await core.turn_end(session, turn) == "turn.paused"
        [asked] = (await core.session(session))["interactions"]
        assert asked["prompt"] == "Send a letter to Mara?"
        seen = (await core.session(session))["lastSeq"]
        await core.answer(session, asked["id"], approved=approved)
        async for name, event in core.events(session, seen):
            if name == "turn.completed":
                assert event["payload"]["output"] == end
                return
    pytest.fail("the turn did not end")


async def test_the_example_of_a_model(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    state, ports = open_state(tmp_path), free_ports()
    async with TestServer(module("custom-model/server.py").app) as server:
        environ = {"PATH": "/usr/bin:/bin", "OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/v1"}
        model = choose_model("openai/parrot", environ, state.path, core_url(ports))
        plan = StackPlan(state=state, ports=ports, environ=environ, model=model)
        async with running_stack(plan, lambda name, line: None) as stack:
            await stack.ready()
            code, said = await command(
                stack, "run", "hello", "Hello!", "--put", "examples/smallest/agent.json"
            )
    assert (code, said.splitlines()[-1]) == (0, "You said: Hello!")
