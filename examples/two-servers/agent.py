"""Prints the manifest of an agent with two MCP servers, started with the Python that runs this."""

import json
import sys
from pathlib import Path

NOTES = Path(__file__).resolve().with_name("notes.py")


def server(name, *args):
    """A server over stdin and stdout."""
    return {"name": name, "type": "stdio", "command": sys.executable, "args": list(args)}


MANIFEST = {
    "manifestSchemaVersion": 4,
    "id": "clerk",
    "capabilities": [
        {
            "id": "desk",
            "type": "agent",
            "instructions": ["You look orders up and keep a note of what you found."],
            "mcpServers": {
                "orders": server("orders", "-m", "cli.demo_server"),
                "notes": server("notes", str(NOTES)),
            },
        }
    ],
}

if __name__ == "__main__":
    print(json.dumps(MANIFEST, indent=2))
