"""The scripted model answers that `up` and `demo` come with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli.demo_agent import ANSWER
from cli.state import StateError

FILE_NAME = "model-script.json"

Entry = dict[str, Any]


def _calls(step: int, say: str, *calls: tuple[str, dict[str, Any]]) -> Entry:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": say}]
    for index, (name, args) in enumerate(calls, 1):
        blocks.append({"type": "tool-call", "id": f"call-{step}-{index}", "name": name, "args": args})
    return {"agent": "demo", "step": step, "answer": {"output": blocks, "finishReason": "tool-calls"}}


DEMO_ANSWERS: list[Entry] = [
    _calls(
        0,
        "I look the order up.",
        ("orders__get_order", {"order_id": "A-1001"}),
        ("orders__order_total", {"order_id": "A-1001"}),
    ),
    _calls(
        1,
        "I start the report.",
        (
            "bash",
            {
                "command": "printf '# Order A-1001\\n\\nState: ?\\nTotal: 378.00\\n' > report.md && cat report.md"
            },
        ),
    ),
    _calls(
        2,
        "Now the state.",
        ("edit", {"path": "report.md", "old_string": "State: ?", "new_string": "State: shipped"}),
    ),
    _calls(3, "I check the file.", ("read", {"path": "report.md"})),
    {"agent": "demo", "step": 4, "answer": ANSWER},
]
"""One turn of the demo's agent: two MCP tools at once, a command, an edit, a look at the file, the answer."""

DEFAULT_ANSWERS: list[Entry] = [
    *DEMO_ANSWERS,
    {
        "answer": "This is a scripted answer: no model is configured here. Every message gets it. "
        "Other answers can be written into the file that WHIPPLETREE_MODEL_SCRIPT names."
    },
]


def write_default_script(folder: Path) -> Path:
    """Writes the script into the folder unless it is there; returns its path. Raises StateError."""
    path = folder / FILE_NAME
    try:
        if not path.exists():
            path.write_text(json.dumps({"answers": DEFAULT_ANSWERS}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StateError(f"{path} can't be written: {error.strerror or error}.") from error
    return path
