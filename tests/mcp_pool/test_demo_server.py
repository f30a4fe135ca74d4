"""The demo's server, as the pool sees it, and its page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from protocol.manifest import validate_agent_manifest
from tests.mcp_pool.support import manifest, running

PAGE = Path(__file__).parents[2] / "examples" / "mcp" / "README.md"
ORDERS = {"name": "orders", "type": "stdio", "command": sys.executable, "args": ["-m", "cli.demo_server"]}


@pytest.fixture
async def harness(tmp_path):
    async with running(tmp_path) as harness:
        yield harness


async def test_its_tools_are_discovered_and_called(harness):
    snapshot, (diagnostic,) = await harness.discover(manifest(ORDERS))
    assert diagnostic["message"] == "Connected"
    assert [tool["name"] for tool in snapshot["mcpTools"]] == [
        "orders__list_orders",
        "orders__get_order",
        "orders__order_total",
    ]
    assert ["outputSchema" in tool for tool in snapshot["mcpTools"]] == [False, True, True]
    listed = await harness.call(ORDERS, "list_orders", {"status": "open"})
    assert listed["output"] == "A-1002: 12 x hame strap for Jonas Behr, open"
    total = await harness.call(ORDERS, "order_total", {"order_id": "a-1003", "express": True})
    assert total["output"] == {"order_id": "A-1003", "total_cents": 14090, "status": "packed"}
    missing = await harness.call(ORDERS, "get_order", {"order_id": "A-9"})
    assert missing["kind"] == "failed"
    assert "There is no order A-9." in missing["message"]


def test_the_manifest_on_its_page_is_valid_and_names_its_tools():
    page = PAGE.read_text()
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    document = json.loads(block)["manifest"]
    validate_agent_manifest(document)
    (server,) = document["capabilities"][0]["mcpServers"].values()
    assert server["args"] == ORDERS["args"]
    for tool in ("list_orders", "get_order", "order_total"):
        assert f"`{tool}`" in page
        assert f"orders__{tool}" in page
