"""A gateway with two sandbox-managers: what happens to a session whose manager is gone, as core sees it."""

import asyncio
import contextlib

import aiohttp
import pytest

from cli.ports import HOST, free_ports
from cli.stack import GATEWAY, SANDBOX
from tests.system.support import Stack, counting_manifest
from tests.system.test_processes import process

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


async def _exec(http, session, command):
    async with http.post(f"/v1/sessions/{session}/workspace/exec", json={"command": command}) as answer:
        return answer.status, await answer.json()


async def _until_done(http, session, command):
    """Repeats a command while the gateway is on its way to the managers."""
    async with asyncio.timeout(60):
        while True:
            status, answer = await _exec(http, session, command)
            if status == 200:
                return answer["output"]["stdout"]
            await asyncio.sleep(0.2)


async def test_a_session_whose_manager_is_gone_gets_no_other_and_finds_its_files_again(tmp_path):
    second = free_ports().sandbox_manager
    stack = Stack(tmp_path, [])
    first = stack.plan.ports.sandbox_manager
    stack.plan.overrides[GATEWAY] = {
        "NYLORUN_SANDBOX_MANAGER_TARGET": f"sandbox-0={HOST}:{first},sandbox-1={HOST}:{second}"
    }
    root = tmp_path / "second"
    root.mkdir()
    settings = {
        "NYLORUN_GRPC_LISTEN": f"{HOST}:{second}",
        "NYLORUN_GRPC_TOKEN_FILE": str(stack.plan.state.token_file(SANDBOX)),
        "NYLORUN_HARNESS_ROOT": str(root),
        "WHIPPLETREE_SANDBOX_DRIVER": "emulated",
    }
    with contextlib.ExitStack() as managers:
        manager = managers.enter_context(process(tmp_path / "second.log", "sandbox-manager", **settings))
        await stack.start()
        try:
            async with stack.core() as core, aiohttp.ClientSession(stack.plan.core_url()) as http:
                await core.put_agent("keeper", counting_manifest("keeper"))
                here, there, folder = None, None, None
                for _ in range(24):
                    session = await core.create_session("keeper")
                    before = set(root.glob("sandboxes/nylorun-*"))
                    assert await _until_done(http, session, f"echo {session} > f; cat f") == f"{session}\n"
                    if new := set(root.glob("sandboxes/nylorun-*")) - before:
                        there, (folder,) = session, new
                    else:
                        here = session
                    if here and there:
                        break
                assert here, "the second manager has all"
                assert there, "the first manager has all"
                made = sorted((tmp_path / "state").rglob("sandboxes/nylorun-*"))
                manager.kill()
                manager.wait(30)
                status, answer = await _exec(http, there, "cat f")
                assert status != 200, answer
                assert await _until_done(http, here, "cat f") == f"{here}\n"
                assert sorted((tmp_path / "state").rglob("sandboxes/nylorun-*")) == made
                managers.enter_context(process(tmp_path / "again.log", "sandbox-manager", **settings))
                assert await _until_done(http, there, "cat f") == f"{there}\n"
                async with http.delete(f"/v1/sessions/{there}") as removed:
                    assert removed.status == 204, await removed.text()
                assert not folder.exists()
        finally:
            await stack.stop()
