"""The example of a remote server: its agent and its file, with the demo's server as they name it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import pytest

from protocol.manifest import validate_agent_manifest
from services.tool_gate.credentials import load_config
from tests.docs.pages import ROOT
from tests.tool_gate.support import gate

FOLDER = ROOT / "examples" / "remote-mcp"
SERVER = {"capabilityId": "orders", "serverName": "orders"}


@pytest.mark.system
async def test_the_agent_s_server_is_reached_as_the_page_says(tmp_path):
    document = json.loads((FOLDER / "agent.json").read_text())["manifest"]
    validate_agent_manifest(document)
    config = load_config(str(FOLDER / "tool-gate.toml"), {})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    declared = document["capabilities"][0]["mcpServers"]["orders"]
    declared["url"] = declared["url"].replace("8765", str(port))
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", "cli.demo_server", str(port))
    try:
        async with gate(tmp_path, document, config=config) as it:
            async with asyncio.timeout(30):
                while not (await it.client.connect(SERVER)).body["ok"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            answer = await it.client.call("list_orders", {"status": "open"}, server=SERVER)
    finally:
        server.kill()
        await server.wait()
    assert answer.body["result"]["content"][0]["text"] == "A-1002: 12 x hame strap for Jonas Behr, open"
