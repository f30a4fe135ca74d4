"""The MCP server of `demo --kill`: each letter that it sends is a line in a file.

Started as `python -m cli.demo_kill_server FILE`. What it did can be counted, however often it was asked.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp.server import MCPServer

POST_OFFICE_S = 600.0
"""How long the slow post takes to answer: longer than the demo runs."""

server = MCPServer("post", version="1", instructions="Sends letters.", log_level="ERROR")
_sent = Path(sys.argv[1] if len(sys.argv) > 1 else "letters.txt")


@server.tool(structured_output=False)
def send_letter(to: str) -> str:
    """Sends a letter and says so."""
    _append(to)
    return f"The letter to {to} is sent."


@server.tool(structured_output=False)
async def send_registered_letter(to: str) -> str:
    """Sends a letter and waits for the receipt, which takes its time."""
    _append(to)
    await asyncio.sleep(POST_OFFICE_S)
    return f"The letter to {to} is received."


def _append(to: str) -> None:
    with _sent.open("a", encoding="utf-8") as file:
        file.write(f"to {to}\n")


if __name__ == "__main__":
    server.run("stdio")
