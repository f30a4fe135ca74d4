"""`whippletree chat` as a process, against a core in this one whose agents do as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from cli.chat import response
from cli.ports import SETTINGS, check_free, free_ports
from tests.dev_core.flow_player import FlowHarness, agent, says_input
from tests.dev_core.support import CoreClient, Lease, running_core

BOUND_S = 30.0


@contextlib.asynccontextmanager
async def chat(*words: str, **environ: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli.main",
        "chat",
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environ},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(process: Process, text: str) -> str:
    """What was printed up to the text; input echoes nothing, since it is no terminal."""
    assert process.stdout is not None
    async with asyncio.timeout(BOUND_S):
        return (await process.stdout.readuntil(text.encode())).decode()


def type_in(process: Process, *lines: str) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines).encode())


async def rest(process: Process) -> tuple[str, int]:
    """What is printed after the end of input, and the exit code."""
    assert process.stdin is not None
    process.stdin.close()
    async with asyncio.timeout(BOUND_S):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return out.decode(), process.returncode


@pytest.fixture
async def core() -> AsyncIterator[CoreClient]:
    async with running_core() as client:
        yield client


async def asks_then_says(lease: Lease) -> Any:
    """Asks for an approval, then for a text, then says what it was answered."""
    given = lease.start["checkpoint"]["input"]
    match given if isinstance(given, dict) else {}:
        case {"kind": "approve", "approved": True}:
            asked = {"id": "i2", "kind": "response", "prompt": "To whom?"}
        case {"kind": "approve"}:
            return await lease.complete(output="Then not.")
        case {"kind": "respond", "value": value}:
            return await lease.complete(output=f"Paid {value}.")
        case _:
            asked = {"id": "i1", "kind": "approval", "prompt": "Pay?\x1b[2J"}
    pending = [{"callId": "c", "toolName": "t", "args": {}, "status": "interaction", "interaction": asked}]
    return await lease.output(
        "turn.paused", status="paused", state=lease.state("paused"), transcript=[], pending=pending
    )


@pytest.mark.system
async def test_messages_are_answered_in_one_session(core: CoreClient) -> None:
    await core.agent(agent("echo"))
    async with FlowHarness(await core.connect(), says_input), chat("--core", core.ready.http) as process:
        type_in(process, "hello", "", "two\\", "lines", "//slash", "/nothing", "/help", "/show")
        said, code = await rest(process)
    assert code == 0
    assert "echo: hello\n" in said
    assert "echo: two\nlines\n" in said
    assert "echo: /slash\n" in said
    assert "There is no /nothing" in said
    assert "(no effects)" in said
    assert said.count("Session ses_") == 1


@pytest.mark.system
async def test_a_person_is_asked_and_the_answers_go_on_with_the_turn(core: CoreClient) -> None:
    await core.agent(agent("clerk"))
    harness = FlowHarness(await core.connect(), asks_then_says)
    async with harness, chat("clerk", "--core", core.ready.http) as process:
        type_in(process, "go", "perhaps", "y", '{"name": "Mara"}', "again", "n")
        said, code = await rest(process)
    assert code == 0
    assert "? Pay?\ufffd[2J" in said
    assert "\x1b[2J" not in said
    assert "Paid {'name': 'Mara'}." in said
    assert "Then not." in said


@pytest.mark.system
async def test_ctrl_c_cancels_the_turn_and_the_chat_goes_on(core: CoreClient) -> None:
    began, told = asyncio.Event(), asyncio.Event()

    async def dawdles(lease: Lease) -> Any:
        if lease.start["checkpoint"]["input"] == "quick":
            return await lease.complete(output="Quick.")
        began.set()
        await told.wait()
        return await lease.output("turn.failed", status="cancelled", state=lease.state())

    await core.agent(agent("slow"))
    async with FlowHarness(await core.connect(), dawdles), chat("slow", "--core", core.ready.http) as process:
        type_in(process, "take your time")
        async with asyncio.timeout(BOUND_S):
            await began.wait()
        process.send_signal(signal.SIGINT)
        await until(process, "The turn was cancelled.")
        told.set()
        type_in(process, "quick", "/quit")
        said, code = await rest(process)
    assert code == 0
    assert "Quick." in said


@pytest.mark.system
async def test_a_second_ctrl_c_ends_the_chat_at_once(core: CoreClient) -> None:
    began = asyncio.Event()

    async def hangs(_: Lease) -> Any:
        began.set()
        await asyncio.Event().wait()

    async def refuses(request: web.Request) -> web.StreamResponse:
        """A core that never answers a cancel, so that the turn goes on."""
        if request.path.endswith("/cancel"):
            await asyncio.Event().wait()
        async with ClientSession() as http:
            body = await request.read()
            async with http.request(request.method, core.ready.http + request.path_qs, data=body) as answer:
                copy = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                await copy.prepare(request)
                async for part in answer.content.iter_any():
                    await copy.write(part)
                return copy

    await core.agent(agent("slow"))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuses)
    async with (
        FlowHarness(await core.connect(), hangs),
        TestServer(app) as between,
        chat("slow", "--core", str(between.make_url("")).rstrip("/")) as process,
    ):
        type_in(process, "take your time")
        async with asyncio.timeout(BOUND_S):
            await began.wait()
        process.send_signal(signal.SIGINT)
        await until(process, "Ctrl-C again ends the chat at once")
        process.send_signal(signal.SIGINT)
        _, code = await rest(process)
    assert code == 130


@pytest.mark.system
async def test_without_a_core_a_stack_runs_for_as_long_as_the_chat(tmp_path: Path) -> None:
    ports = free_ports()
    environ = {
        setting: str(getattr(ports, name)) if name == "health" else f"127.0.0.1:{getattr(ports, name)}"
        for name, setting in SETTINGS.items()
    }
    async with chat(**environ, WHIPPLETREE_STATE_DIR=str(tmp_path)) as process:
        type_in(process, "hello", "/quit")
        said, code = await rest(process)
    assert code == 0
    assert "starting one for this chat" in said
    assert "of the agent assistant" in said
    assert "scripted answer" in said
    assert "Ready." in (tmp_path / "up.log").read_text()
    check_free(ports)


@pytest.mark.system
async def test_a_stack_that_can_t_start_is_said_with_its_log(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environ = {"WHIPPLETREE_MCP_POOL_LISTEN": f"127.0.0.1:{taken.getsockname()[1]}"}
        environ["WHIPPLETREE_CORE_HTTP_LISTEN"] = f"127.0.0.1:{free_ports().core_http}"
        async with chat(**environ, WHIPPLETREE_STATE_DIR=str(tmp_path)) as process:
            said, code = await rest(process)
    assert code == 2
    assert "is in use by another program" in said
    assert str(tmp_path / "up.log") in said


@pytest.mark.system
async def test_a_session_goes_on_where_it_was(core: CoreClient) -> None:
    await core.agent(agent("echo"))
    session = await core.session("echo")
    harness = FlowHarness(await core.connect(), says_input)
    async with harness, chat("--session", session, "--core", core.ready.http) as process:
        type_in(process, "one", "/new", "two")
        said, code = await rest(process)
    assert code == 0
    assert said.index("echo: one") < said.index("echo: two")
    assert said.count("Session ses_") == 2


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "There is no agent 'nobody'"),
        ([], "Which agent?"),
        (["--session", "ses_none"], "There is no session"),
        (["a", "--model", "openai/x"], "leave --model out"),
        (["--put", __file__], "is not JSON"),
    ],
)
async def test_what_can_t_begin_says_why(core: CoreClient, words: list[str], said: str) -> None:
    await core.agent(agent("a"))
    await core.agent(agent("b"))
    async with chat(*words, "--core", core.ready.http) as process:
        printed, code = await rest(process)
    assert code == 2
    assert said in printed
    assert "Traceback" not in printed


@pytest.mark.system
async def test_a_core_that_was_named_and_is_not_there_is_not_replaced(tmp_path: Path) -> None:
    async with chat("--core", "http://127.0.0.1:1") as process:
        printed, code = await rest(process)
    assert code == 2
    assert "No development core answers at http://127.0.0.1:1" in printed


@pytest.mark.parametrize(
    ("typed", "value"),
    [("Mara", "Mara"), ('{"a": 1}', {"a": 1}), ("[1]", [1]), ('"x"', "x"), ("{a", "{a"), ("42", "42")],
)
def test_an_answer_is_text_unless_it_is_json_beyond_doubt(typed: str, value: Any) -> None:
    assert response(typed) == value
    assert json.dumps(response(typed))
