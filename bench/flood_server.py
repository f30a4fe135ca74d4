"""An MCP server that answers a call with a flood of notifications, and then with its answer.

    python -S -I bench/flood_server.py

Its tool `flood` takes the `count` and the `method` of the notifications.
"""

import json
import sys
from typing import Any

_BATCH = 1000


def flood(count: int, method: str) -> None:
    """Writes notifications as fast as they are taken."""
    line = json.dumps({"jsonrpc": "2.0", "method": method, "params": {"level": "info", "data": "x" * 40}})
    batch = (line + "\n").encode() * _BATCH
    for _ in range(count // _BATCH):
        sys.stdout.buffer.write(batch)
    sys.stdout.buffer.flush()


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench-flood", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}
    flood(params["arguments"]["count"], params["arguments"]["method"])
    return {"content": [{"type": "text", "text": "done"}]}


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
