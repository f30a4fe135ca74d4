"""The agent of `chat` where nobody has put one: it reads, writes and runs things in its own workspace."""

from __future__ import annotations

from typing import Final

from cli.demo_agent import Document, sandbox_tools

ASSISTANT: Final = "assistant"


def assistant() -> Document:
    """The manifest."""
    return {
        "manifestSchemaVersion": 4,
        "id": ASSISTANT,
        "name": "Assistant",
        "capabilities": [
            {
                "id": "workspace",
                "type": "agent",
                "instructions": [
                    "You help the person you talk to. You have a workspace with files and a shell of your own; "
                    "use it when it helps, and say in a sentence what you did."
                ],
                "sandbox": {"network": {"preset": "none"}},
                "tools": sandbox_tools(),
            }
        ],
    }
