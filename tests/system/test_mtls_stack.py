"""A whole stack over mTLS without a single gRPC token; its certificates change under it (operations 12.3)."""

import asyncio
import subprocess
import sys

import pytest

from cli.dev_ca import spiffe_id
from cli.stack import GATEWAY, MCP, MODEL, SANDBOX
from tests.common.support import until as soon
from tests.system.support import Stack, calls, counting_manifest

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

AGENT = "sealed"
ANSWERS = [
    calls(AGENT, 0, ("counting__echo", {"text": "one"}), ("bash", {"command": "echo two"})),
    {"agent": AGENT, "step": 1, "answer": "Done."},
]


def settings(folder, name):
    files = {
        "NYLORUN_GRPC_TLS": "mtls",
        "NYLORUN_GRPC_CA_FILE": str(folder / "ca.pem"),
        "NYLORUN_GRPC_CERT_FILE": str(folder / f"{name}.pem"),
        "NYLORUN_GRPC_KEY_FILE": str(folder / f"{name}.key"),
    }
    if name == GATEWAY:
        tokens = {
            f"NYLORUN_{service}_GRPC_TOKEN_FILE": ""
            for service in ("MODEL_EXECUTOR", "MCP_POOL", "SANDBOX_MANAGER")
        }
        return files | tokens
    return files | {"NYLORUN_GRPC_TOKEN_FILE": "", "NYLORUN_GRPC_ALLOWED_CLIENTS": spiffe_id("gateway")}


def whippletree(*words, environ=None):
    command = [sys.executable, "-m", "cli.main", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


async def turn(core, session):
    sent = await core.send_message(session, "Go.")
    return await asyncio.wait_for(core.turn_end(session, sent), 60)


async def test_turns_run_over_mtls_also_after_the_authority_was_changed(tmp_path):
    folder = tmp_path / "certs"
    assert whippletree("dev-ca", str(folder), "--host", "elsewhere.example").returncode == 0
    names = (GATEWAY, MODEL, MCP, SANDBOX)
    stack = Stack(tmp_path, ANSWERS, overrides={name: settings(folder, name) for name in names})
    await stack.start()
    try:
        async with stack.core() as core:
            await core.put_agent(AGENT, counting_manifest(AGENT))
            session = await core.create_session(AGENT)
            assert await turn(core, session) == "turn.completed"
            checked = settings(folder, MODEL) | {
                "NYLORUN_GRPC_LISTEN": f"127.0.0.1:{stack.plan.ports.model_executor}"
            }
            done = await asyncio.to_thread(whippletree, "healthcheck", "--service", MODEL, environ=checked)
            assert done.returncode == 0, done.stderr
            for name in ("ca.pem", "ca.key"):
                (folder / name).unlink()
            assert (await asyncio.to_thread(whippletree, "dev-ca", str(folder))).returncode == 0
            await soon(lambda: any("grpc_certificates_read" in line for line in stack.lines(GATEWAY)))
            assert await turn(core, session) == "turn.completed"
            assert not any("service_lost" in line for line in stack.lines(GATEWAY))
    finally:
        await stack.stop()
