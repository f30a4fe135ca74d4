"""What people are told about a server."""

from __future__ import annotations

import pytest

from services.mcp_pool.declarations import ServerName
from services.mcp_pool.diagnostics import connected, not_connected
from services.mcp_pool.failures import McpFailure, ServerError

NAME = ServerName(None, "cap", "srv")
CHILD = ServerName("child", "cap", "srv")


def test_connected_servers_name_what_was_left_out():
    assert connected(NAME) == {
        "capabilityId": "cap",
        "serverName": "srv",
        "outcome": "connected",
        "message": "Connected",
    }
    assert connected(CHILD, ["a", "b"]) == {
        "agentId": "child",
        "capabilityId": "cap",
        "serverName": "srv",
        "outcome": "connected",
        "message": "Connected. Omitted a, b",
    }


@pytest.mark.parametrize(
    "failure",
    [ServerError("Unauthorized", code=401), McpFailure("HTTP 401: go away"), McpFailure("status:401")],
)
def test_every_401_reads_the_same(failure):
    assert not_connected(NAME, failure)["message"] == "MCP server returned 401"


def test_other_messages_are_cut_to_500_utf16_units():
    assert not_connected(NAME, McpFailure("error 4011"))["message"] == "error 4011"
    assert not_connected(NAME, McpFailure("é401"))["message"] == "MCP server returned 401"
    assert not_connected(NAME, McpFailure("x" * 501))["message"] == "x" * 500
    assert not_connected(NAME, McpFailure("\U0001f600" * 300))["message"] == "\U0001f600" * 250


def test_a_refusal_keeps_its_text_and_names_credentials():
    refusal = McpFailure("MCP authorization refused: ambiguous", credential_ids=["k1", "k2"])
    assert not_connected(NAME, refusal) == {
        "capabilityId": "cap",
        "serverName": "srv",
        "outcome": "refused",
        "message": "MCP authorization refused: ambiguous",
        "credentialIds": ["k1", "k2"],
    }
    assert "credentialIds" not in not_connected(NAME, McpFailure("MCP authorization refused: no"))
