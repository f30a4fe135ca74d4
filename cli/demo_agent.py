"""The demo's agent: its manifest and the script that answers its model calls."""

from __future__ import annotations

from typing import Any

QUESTION = "What is the state of order A-1001, and what does it come to? Write it into report.md."
ANSWER = (
    "Order A-1001 (2 oak whippletrees for Mara Lind) was shipped and comes to 378.00. "
    "It stands in report.md in the workspace."
)

Document = dict[str, Any]


def manifest(interpreter: str) -> Document:
    """The agent: an MCP server over stdio, started with `interpreter`, and a sandbox."""
    return {
        "manifestSchemaVersion": 4,
        "id": "demo",
        "name": "Order clerk",
        "capabilities": [
            {
                "id": "clerk",
                "type": "agent",
                "instructions": ["You look orders up and keep notes in the workspace. Be brief."],
                "mcpServers": {
                    "orders": {
                        "name": "orders",
                        "type": "stdio",
                        "command": interpreter,
                        "args": ["-m", "cli.demo_server"],
                    }
                },
            },
            {
                "id": "workspace",
                "type": "agent",
                "sandbox": {"network": {"preset": "none"}},
                "tools": sandbox_tools(),
            },
        ],
    }


def sandbox_tools() -> list[Document]:
    """The six tools that a capability with a sandbox declares (sandbox-manager 9.2)."""
    text = {"type": "string"}
    filled = {"type": "string", "minLength": 1}
    flag = {"type": "boolean"}
    return [
        _tool("bash", "Run a shell command.", {"command": filled, "timeout": _integer(1, 600)}, ["command"]),
        _tool(
            "read",
            "Read a file with line numbers.",
            {"path": filled, "offset": {"type": "integer", "minimum": 1}, "limit": _integer(1, 5000)},
            ["path"],
        ),
        _tool("write", "Write a file.", {"path": filled, "content": text}, ["path", "content"]),
        _tool(
            "edit",
            "Replace text in a file.",
            {"path": filled, "old_string": filled, "new_string": text, "replace_all": flag},
            ["path", "old_string", "new_string"],
        ),
        _tool(
            "grep",
            "Search files for a pattern.",
            {
                "pattern": filled,
                "path": filled,
                "glob": filled,
                "ignore_case": flag,
                "max_results": _integer(1, 1000),
            },
            ["pattern"],
        ),
        _tool("glob", "List files that match a pattern.", {"pattern": filled, "path": filled}, ["pattern"]),
    ]


def _tool(name: str, description: str, properties: Document, required: list[str]) -> Document:
    return {
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
    }


def _integer(low: int, high: int) -> Document:
    return {"type": "integer", "minimum": low, "maximum": high}
