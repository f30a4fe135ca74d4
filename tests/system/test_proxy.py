"""The services behind an HTTP/2 proxy that chooses replicas by the affinity header, as a mesh does it."""

import asyncio
import contextlib
import shutil
import socket
import subprocess

import grpc
import pytest
from whippletree.v1 import admin_pb2, admin_pb2_grpc

from cli.ports import HOST, free_ports
from cli.stack import GATEWAY, MCP, process_specs
from tests.system.support import ENDED, Stack, counting_manifest, until

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy"),
]

AGENT = "proxied"
SESSIONS = 6
# Nothing is sent again, and silence is no reason to end a call.
CONFIGURATION = """
defaults
  mode http
  retries 0
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h

listen model-executor
  bind 127.0.0.1:{front.model_executor} proto h2
  server one 127.0.0.1:{back.model_executor} proto h2

listen mcp-pool
  bind 127.0.0.1:{front.mcp_pool} proto h2
  balance hdr(x-nylorun-affinity)
  hash-type consistent
  server one 127.0.0.1:{back.mcp_pool} proto h2
  server two 127.0.0.1:{second} proto h2

listen sandbox-manager
  bind 127.0.0.1:{front.sandbox_manager} proto h2
  server one 127.0.0.1:{back.sandbox_manager} proto h2
"""


@contextlib.contextmanager
def child(*words, environ=None, log):
    with log.open("wb") as output:
        started = subprocess.Popen(words, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(30)


async def listening(port):
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, port), 1).close()
                return
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def stack_behind_a_proxy(folder):
    """The stack, whose gateway knows the proxy's ports alone, and the ports of both pools."""
    front = free_ports()
    # Each turn opens or finds the session's servers; no tool is called (docs/mesh.md says why).
    answers = [{"agent": AGENT, "answer": "Done."}]
    targets = {
        "NYLORUN_MODEL_EXECUTOR_TARGET": f"{HOST}:{front.model_executor}",
        "NYLORUN_MCP_POOL_TARGET": f"{HOST}:{front.mcp_pool}",
        "NYLORUN_SANDBOX_MANAGER_TARGET": f"sandbox-0={HOST}:{front.sandbox_manager}",
    }
    stack = Stack(folder, answers, overrides={GATEWAY: targets})
    second = front.core_http
    configuration = folder / "haproxy.cfg"
    configuration.write_text(CONFIGURATION.format(front=front, back=stack.plan.ports, second=second))
    (pool,) = [spec for spec in process_specs(stack.plan) if spec.name == MCP]
    other = dict(pool.environ) | {
        "NYLORUN_GRPC_LISTEN": f"{HOST}:{second}",
        "NYLORUN_HARNESS_ROOT": str(folder / "second"),
    }
    with (
        child("haproxy", "-db", "-f", str(configuration), log=folder / "haproxy.log"),
        child(*pool.argv, environ=other, log=folder / "second.log"),
    ):
        await listening(front.mcp_pool)
        await listening(second)
        await stack.start()
        try:
            yield stack, (stack.plan.ports.mcp_pool, second)
        finally:
            await stack.stop()


async def connections(stack, port):
    """How many MCP connections a pool has."""
    bearer = ("authorization", f"Bearer {stack.plan.state.token_file(MCP).read_text().strip()}")
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        told = await admin_pb2_grpc.AdminStub(channel).Describe(
            admin_pb2.DescribeRequest(), metadata=[bearer], timeout=20
        )
    return int(told.facts["connections"])


async def test_turns_run_and_each_session_has_its_servers_in_one_pool(tmp_path):
    async with stack_behind_a_proxy(tmp_path) as (stack, pools), stack.core() as core:
        await core.put_agent(AGENT, counting_manifest(AGENT))
        sessions = [await core.create_session(AGENT) for _ in range(SESSIONS)]
        for _ in range(2):
            turns = {session: await core.send_message(session, "Go.") for session in sessions}
            for session, turn in turns.items():
                view = await until(
                    lambda session=session: core.session(session),
                    lambda view, turn=turn: view["status"] in ENDED and view["lastTurn"]["id"] == turn,
                )
                assert view["lastTurn"]["status"] == "completed", stack.tail()
        held = [await connections(stack, port) for port in pools]
        assert sum(held) == SESSIONS
