"""A remote MCP server through all processes: gateway, mcp-pool, Tool Gate, and a server of the official SDK.

Each of the four is killed while a call runs at the server; the server's own record says how often it ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys

import aiohttp
import pytest
import pytest_asyncio

from cli.gate_choice import GateChoice
from cli.stack import CORE, GATE, GATEWAY, MCP
from tests.leaks.watch import secret
from tests.system.support import ENDED, Stack, calls, patiently, until

pytestmark = [
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]

AGENT = "far-away"
ANSWER = "All done."
TOKEN = secret("a-credential-of-the-test")


class Remote:
    """The server's process and what it recorded."""

    def __init__(self, folder):
        self.record = folder / "calls"
        self.record.touch()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = None

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.port}"

    def calls(self):
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def let_go(self, name):
        self.record.with_name(name).touch()

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.tool_gate.remote_server",
            "events",
            str(self.port),
            str(self.record),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        async with asyncio.timeout(60):
            assert (await self.process.stdout.readline()).strip() == b"ready"

    async def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def remote(tmp_path_factory):
    made = Remote(tmp_path_factory.mktemp("remote"))
    await made.start()
    yield made
    await made.stop()


def answers():
    return [
        calls(AGENT, 0, ("far__echo", {"said": "hello"}), text="echo"),
        {"agent": AGENT, "step": 1, "answer": ANSWER},
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory, remote):
    folder = tmp_path_factory.mktemp("stack")
    config = folder / "tool-gate.toml"
    config.write_text(
        f'[servers.far]\norigin = "{remote.origin}"\nallow_private = true\n'
        '[servers.far.headers]\nAuthorization = {env = "FAR_TOKEN", prefix = "Bearer "}\n'
    )
    script = [
        *(
            calls(AGENT, 0, ("far__hold", {"name": name}), text=f"hold {name}.")
            for name in ("gateway", "pool", "gate", "core", "server", "cancel", "pool cancel")
        ),
        *answers(),
    ]
    made = Stack(
        folder,
        script,
        core_settings={"WHIPPLETREE_CORE_LEASE_MS": "1500"},
        environ={"FAR_TOKEN": TOKEN},
        gate=GateChoice(config, ("FAR_TOKEN",)),
    )
    await made.start()
    async with made.core() as core:
        await core.put_agent(AGENT, manifest(remote))
    yield made
    await made.stop()


def manifest(remote):
    server = {"name": "far", "type": "streamable-http", "url": f"{remote.origin}/mcp"}
    return {
        "manifestSchemaVersion": 4,
        "id": AGENT,
        "capabilities": [{"id": "far", "type": "agent", "mcpServers": {"far": server}}],
    }


@pytest.fixture(autouse=True)
def _log_of_a_failure(stack):
    mark = len(stack.log)
    yield
    print("\n" + stack.tail(min(80, len(stack.log) - mark)))


async def held(stack, remote, name):
    """A session whose turn waits in a call of the server."""
    async with stack.core() as core:
        session = await patiently(lambda: core.create_session(AGENT))
        turn = await patiently(lambda: core.send_message(session, f"hold {name}."))

        async def recorded():
            return remote.calls()

        await until(recorded, lambda found: ["hold", name] in found)
    return session, turn


async def ended(stack, session):
    async with stack.core() as core:
        return await until(lambda: core.session(session), lambda seen: seen["status"] in ENDED)


async def effect_of(stack, session, turn):
    async with stack.core() as core:
        effects = await patiently(lambda: core.effects(session, turn))
    [effect] = [effect for effect in effects if effect["kind"] == "tool"]
    return effect


async def test_a_turn_uses_a_tool_of_a_remote_server_with_its_credential(stack, remote):
    async with stack.core() as core:
        session = await core.create_session(AGENT)
        turn = await core.send_message(session, "echo")
        view = await ended(stack, session)
        assert view["status"] == "completed", view
        assert view["lastTurn"]["result"]["output"] == ANSWER
        connected = {
            "capabilityId": "far",
            "serverName": "far",
            "outcome": "connected",
            "message": "Connected",
        }
        assert view["mcp"]["servers"] == [connected]
    effect = await effect_of(stack, session, turn)
    assert (effect["runner"], effect["attempts"]) == ("remote-mcp", 1)
    assert effect["outcome"]["value"] == {"kind": "completed", "output": {"said": "hello"}}
    assert ["echo", "hello"] in remote.calls()
    assert ["authorization", f"Bearer {TOKEN}"] in remote.calls()
    assert not any(TOKEN in line for _, line in stack.log)


async def test_a_person_s_cancel_reaches_the_server(stack, remote):
    session, turn = await held(stack, remote, "cancel")
    async with stack.core() as core:
        await core._call("POST", f"/v1/sessions/{session}/cancel", {})

        async def recorded():
            return remote.calls()

        await until(recorded, lambda found: ["cancelled", "cancel"] in found)
    assert (await ended(stack, session))["status"] == "cancelled"
    assert (await effect_of(stack, session, turn))["status"] == "uncertain"


@pytest.mark.faults
async def test_a_cancel_reaches_the_server_when_the_pool_that_made_the_call_is_killed_before_it(
    stack, remote
):
    session, _ = await held(stack, remote, "pool cancel")
    assert stack.kill(MCP) is not None
    async with stack.core() as core:
        await core._call("POST", f"/v1/sessions/{session}/cancel", {})

    async def recorded():
        return remote.calls()

    await until(recorded, lambda found: ["cancelled", "pool cancel"] in found)
    assert (await ended(stack, session))["status"] == "cancelled"
    assert remote.calls().count(["hold", "pool cancel"]) == 1


@pytest.mark.faults
@pytest.mark.spec("mcp-pool:11.28")
@pytest.mark.spec("operations:13.33")
@pytest.mark.parametrize(("process", "name"), [(GATEWAY, "gateway"), (MCP, "pool"), (CORE, "core")])
async def test_a_call_outlives_who_asked_for_it_and_runs_once(stack, remote, process, name):
    session, turn = await held(stack, remote, name)
    assert stack.kill(process) is not None
    if process != MCP:
        # The next run has to take the session over before the call ends.
        async with stack.core() as core:
            await until(
                lambda: core.effects(session, turn),
                lambda found: found and found[-1]["attempts"] > 1,
                bound=60,
            )
    remote.let_go(name)
    view = await ended(stack, session)
    assert view["status"] == "completed", view
    effect = await effect_of(stack, session, turn)
    assert effect["outcome"]["value"]["output"] == f"let go: {name}"
    assert remote.calls().count(["hold", name]) == 1


@pytest.mark.faults
@pytest.mark.spec("mcp-pool:11.29")
async def test_a_gate_that_dies_leaves_its_call_uncertain_and_it_runs_once(stack, remote):
    session, turn = await held(stack, remote, "gate")
    assert stack.kill(GATE) is not None
    view = await ended(stack, session)
    assert view["status"] == "uncertain", view
    effect = await effect_of(stack, session, turn)
    assert effect["status"] == "uncertain"
    remote.let_go("gate")
    async with aiohttp.ClientSession() as http:

        async def ready():
            try:
                async with http.get(f"{stack.plan.gate_url()}/ready") as answer:
                    return answer.status
            except aiohttp.ClientError:
                return 0

        await until(ready, lambda status: status == 200)
    async with stack.core() as core:
        await core._call("POST", f"/v1/sessions/{session}/cancel", {})
        await core.send_message(session, "echo")
        view = await ended(stack, session)
    assert view["status"] == "completed", view
    assert remote.calls().count(["hold", "gate"]) == 1


@pytest.mark.faults
async def test_a_server_that_dies_leaves_its_call_uncertain_and_the_next_turn_reaches_it_again(stack, remote):
    session, _ = await held(stack, remote, "server")
    await remote.stop()
    view = await ended(stack, session)
    assert view["status"] == "uncertain", view
    await remote.start()
    async with stack.core() as core:
        await core._call("POST", f"/v1/sessions/{session}/cancel", {})
        await core.send_message(session, "echo")
    view = await ended(stack, session)
    assert view["status"] == "completed", view
    assert remote.calls().count(["hold", "server"]) == 1


async def test_the_gate_answers_its_health_check_and_asks_for_a_token(stack):
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{stack.plan.gate_url()}/ready") as ready:
            assert await ready.json() == {"ready": True}
        async with http.post(f"{stack.plan.gate_url()}/nylorun/v1/mcp/connect", json={}) as refused:
            assert refused.status == 401
    checked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli.main",
        "healthcheck",
        "--service",
        "tool-gate",
        env={**os.environ, "WHIPPLETREE_TOOL_GATE_LISTEN": stack.plan.gate_url().removeprefix("http://")},
    )
    assert await checked.wait() == 0
