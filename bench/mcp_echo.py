"""An MCP server over stdio that gives back the text it is sent: as little work as a server can do.

    python -S -I bench/mcp_echo.py

It uses the standard library alone, so that what is measured is the way to a server and back. Servers on
the official SDK take some milliseconds more, wherever they are called from.
"""

import json
import sys
from typing import Any

TOOL = {
    "name": "echo",
    "description": "Gives the text back.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
}


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench-echo", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    return {}


def main() -> None:
    """Answers line by line until the input ends."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            answer = _result(message["method"], message.get("params", {}))
            text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer})
            sys.stdout.buffer.write(text.encode() + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
