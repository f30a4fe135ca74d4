"""An MCP server over stdio of the standard library alone; each call leaves a line in a file at once."""

import json
import sys
import time

TOOLS = [
    {
        "name": "append",
        "description": "Appends a line to a file, then waits.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "file": {"type": "string"},
                "line": {"type": "string"},
                "holdMs": {"type": "integer"},
            },
            "required": ["file", "line"],
        },
    },
    {
        "name": "echo",
        "description": "Answers its text.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
]


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "counting", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    arguments = params["arguments"]
    if params["name"] == "echo":
        return {"content": [{"type": "text", "text": arguments["text"]}]}
    with open(arguments["file"], "a") as file:
        file.write(arguments["line"] + "\n")
    time.sleep(arguments.get("holdMs", 0) / 1000)
    return {"content": [{"type": "text", "text": "appended"}]}


for raw in sys.stdin:
    message = json.loads(raw)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
