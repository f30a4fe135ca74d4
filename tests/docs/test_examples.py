"""The programs and documents that the pages show do what the pages say."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

import services.model_executor.main as model_executor
import services.model_executor.settings as model_settings
import services.sandbox_manager.main as sandbox_manager
import services.sandbox_manager.settings as sandbox_settings
from cli import flow_example
from cli.demo_agent import sandbox_tools
from protocol.manifest import validate_agent_manifest
from protocol.workflow import validate_workflow
from services.dev_core.turns.messages import read_message
from services.model_executor.script import read_script
from tests.docs.pages import DOCS, ROOT, Page
from tests.leaks.watch import secret

TOKEN = secret("cd" * 32)
HTTP, GRPC = Page(DOCS / "http-api.md"), Page(DOCS / "grpc.md")


def programs(page: Page) -> list[dict[str, Any]]:
    """The page's Python blocks, each run as a module of its own."""
    found = []
    for block in page.blocks:
        if block.language == "python":
            names: dict[str, Any] = {"__name__": "example"}
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)  # noqa: S102  (our own page)
            found.append(names)
    return found


def documents(page: Page) -> list[Any]:
    return [json.loads(block.text) for block in page.blocks if block.language == "json"]


async def test_the_action_endpoint_answers_as_the_page_says() -> None:
    [program] = programs(HTTP)
    async with TestClient(TestServer(program["app"])) as client:

        async def post(tool: str, **context: Any) -> tuple[int, Any]:
            effect = {"toolName": tool, "input": {"to": "Mara"}, "context": context}
            async with client.post("/actions", json=effect) as answer:
                return answer.status, await answer.json() if answer.content_type.endswith("json") else None

        status, asked = await post("send_letter", callId="c")
        assert (status, asked["value"]["kind"]) == (200, "interaction-required")
        assert asked["value"]["interaction"] == {"kind": "approval", "prompt": "Send a letter to Mara?"}
        sent = {"value": {"kind": "completed", "output": "Sent to Mara."}}
        assert await post("send_letter", resume={"approved": True}) == (200, sent)
        assert (await post("order_wood"))[0] == 202
        assert await post("fly") == (404, {"message": "There is no Action fly."})


def test_the_agent_and_the_scripts_of_the_pages_are_valid() -> None:
    agent, script, message = documents(HTTP)
    validate_agent_manifest(agent["manifest"])
    read_script(json.dumps(script))
    assert read_message(message).input("agent") == message
    [shown] = documents(Page(DOCS / "configuration.md"))
    read_script(json.dumps(shown))
    [shop] = documents(Page(ROOT / "examples" / "mcp" / "README.md"))
    validate_agent_manifest(shop["manifest"])


def test_the_sandbox_example_has_the_tools_of_the_demo_and_a_script_for_its_agent() -> None:
    folder = ROOT / "examples" / "sandbox"
    agent = json.loads((folder / "agent.json").read_text())["manifest"]
    validate_agent_manifest(agent)
    assert agent["capabilities"][0]["tools"] == sandbox_tools()
    script = (folder / "script.json").read_text()
    read_script(script)
    assert {entry["agent"] for entry in json.loads(script)["answers"]} == {agent["id"]}


@contextlib.asynccontextmanager
async def served(module: Any, settings: Any) -> AsyncIterator[str]:
    """A service in this process; gives its address."""
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(module.run(settings, stop, address.set_result))
    try:
        async with asyncio.timeout(30):
            await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
        yield address.result()
    finally:
        stop.set()
        await serving


async def test_the_workspace_example_runs_a_command_once(tmp_path: Path) -> None:
    run = programs(GRPC)[0]["run"]
    environ = {
        "NYLORUN_GRPC_LISTEN": "127.0.0.1:0",
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_HARNESS_ROOT": str(tmp_path),
        "WHIPPLETREE_SANDBOX_DRIVER": "emulated",
    }
    async with served(sandbox_manager, sandbox_settings.read_settings(environ)) as address:
        command = "echo x >> log; cat log"
        first = json.loads(await run(address, TOKEN, "t1:0:tool:1", command))
        assert first["output"]["stdout"] == "x\n"
        assert json.loads(await run(address, TOKEN, "t1:0:tool:1", command)) == first
        again = json.loads(await run(address, TOKEN, "t1:0:tool:2", command))
        assert again["output"]["stdout"] == "x\nx\n"


async def test_the_model_example_gets_an_answer(tmp_path: Path) -> None:
    ask = programs(GRPC)[1]["ask"]
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"answers": [{"text": "Hi", "answer": "Hello."}]}))
    environ = {
        "NYLORUN_GRPC_LISTEN": "127.0.0.1:0",
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "WHIPPLETREE_MODEL_ROUTE": "scripted",
        "WHIPPLETREE_MODEL_SCRIPT": str(script),
    }
    async with served(model_executor, model_settings.read_settings(environ)) as address:
        assert await asyncio.to_thread(ask, address, TOKEN, "t1:0:model:1", "Hi") == '"Hello."'


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_requests_of_the_grpc_page_are_messages_of_the_contract(index: int) -> None:
    from google.protobuf import json_format
    from whippletree.v1 import mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2

    message = (
        model_executor_pb2.ModelCallRequest,
        mcp_pool_pb2.ToolCallRequest,
        sandbox_manager_pb2.RunRequest,
    )[index]
    json_format.ParseDict(documents(GRPC)[index], message())


async def test_the_flow_example_is_valid_and_its_functions_do_what_the_page_says() -> None:
    validate_workflow(flow_example.manifest())
    read_script(flow_example.script().read_text())
    async with TestClient(TestServer(flow_example.endpoint())) as client:

        async def call(key: str, given: dict[str, Any]) -> Any:
            async with client.post("/actions", json={"key": key, "input": given}) as answer:
                assert answer.status == 200
                return (await answer.json())["value"]

        parts = await call("parts:input", {"input": flow_example.document()})
        assert [part.splitlines()[0] for part in parts] == [
            "## What we bought",
            "## How they pull",
            "## What broke",
            "## What comes next",
        ]
        asked = await call("brief:input", {"results": {"parts": ["One.", "Two."]}})
        assert asked.endswith("notes:\n\n- One.\n- Two.")
        assert await call("brief:verify", {"output": "short"}) == {"pass": True, "words": 1}
        verdict = await call("brief:verify", {"output": "word " * 61})
        assert verdict == {"pass": False, "feedback": "That has 61 words; 60 are allowed. Shorten it."}
        async with client.post("/actions", json={"key": "other", "input": {}}) as answer:
            assert answer.status == 404
