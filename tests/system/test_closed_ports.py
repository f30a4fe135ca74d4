"""What the services start can't call the services (operations 12.4)."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from cli.demo_agent import sandbox_tools
from tests.system.support import Stack, calls

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

AGENT = "prying"
SERVER = Path(__file__).parent / "dialing_server.py"


def manifest():
    server = {"name": "dialing", "type": "stdio", "command": sys.executable, "args": [str(SERVER)]}
    return {
        "manifestSchemaVersion": 4,
        "id": AGENT,
        "capabilities": [
            {"id": "dialing", "type": "agent", "mcpServers": {"dialing": server}},
            {
                "id": "workspace",
                "type": "agent",
                "sandbox": {"network": {"preset": "none"}},
                "tools": sandbox_tools(),
            },
        ],
    }


@pytest.mark.spec("operations:13.29")
async def test_an_mcp_server_and_a_sandbox_are_not_let_in(tmp_path):
    stack = Stack(tmp_path, [])
    ports = stack.plan.ports
    dialled = [ports.model_executor, ports.mcp_pool, ports.sandbox_manager]
    file = tmp_path / "statuses.json"
    tries = "; ".join(
        f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo was-open || echo was-closed"
        for port in dialled
    )
    answers = [
        calls(
            AGENT,
            0,
            ("dialing__dial", {"ports": dialled, "file": str(file)}),
            ("bash", {"command": tries}),
        ),
        {"agent": AGENT, "step": 1, "answer": "Done."},
    ]
    (tmp_path / "script.json").write_text(json.dumps({"answers": answers}))
    await stack.start()
    try:
        async with stack.core() as core:
            await core.put_agent(AGENT, manifest())
            session = await core.create_session(AGENT)
            turn = await core.send_message(session, "Try.")
            assert await asyncio.wait_for(core.turn_end(session, turn), 90) == "turn.completed"
            effects = await core.effects(session, turn)
    finally:
        await stack.stop()
    statuses = json.loads(file.read_text())
    assert len(statuses) >= 2 * len(dialled)
    assert set(statuses) == {"UNAUTHENTICATED"}
    [output] = [
        json.dumps(effect["outcome"])
        for effect in effects
        if effect["kind"] == "tool" and "was-" in json.dumps(effect["outcome"])
    ]
    assert output.count("was-closed") == len(dialled)
    assert "was-open" not in output
