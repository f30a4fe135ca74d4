"""What a turn did, as lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

Document = dict[str, Any]

BAR_WIDTH: Final = 24
OUTCOME_WIDTH: Final = 44
PLACES: Final = {
    "model": "model-executor",
    "mcp": "mcp-pool",
    "remote-mcp": "tool-gate",
    "sandbox": "sandbox-manager",
    "action": "Action endpoint",
    "linked": "linked session",
}
"""Process names by the core's name for who carries an effect out."""

_STAGES: Final = {"fn": "function", "verify": "function"}


def timeline(effects: Sequence[Document]) -> list[str]:
    """One line per effect: number, what, where, start and length in milliseconds, a bar, the outcome."""
    if not effects:
        return ["(no effects)"]
    starts = [_ms(effect["startedAt"]) for effect in effects]
    first = min(starts)
    spans = [
        (start - first, float(effect.get("durationMs", 0.0)))
        for start, effect in zip(starts, effects, strict=True)
    ]
    whole = max(start + length for start, length in spans) or 1.0
    rows = [
        (
            what(effect),
            where(effect),
            f"{start:.0f}",
            f"{length:.0f}",
            _bar(start, length, whole),
            outcome(effect),
        )
        for effect, (start, length) in zip(effects, spans, strict=True)
    ]
    titles = ("what", "where", "at ms", "ms", "", "outcome")
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    return [_row(row, widths) for row in (titles, *rows)]


def what(effect: Document) -> str:
    """`model call`, the tool's name, or the kind and path of a workflow's stage."""
    request = effect.get("request") or {}
    if request.get("path"):
        return f"{_STAGES.get(effect['kind'], effect['kind'])} {request['path']}"
    return "model call" if effect["kind"] == "model" else str(request.get("toolName") or effect["kind"])


def where(effect: Document) -> str:
    """The process that ran the effect."""
    return PLACES.get(str(effect["runner"]), "core")


def outcome(effect: Document) -> str:
    """The outcome in a few words, safe for a terminal."""
    if effect["status"] != "completed":
        return str(effect["status"]) + (f": {_short(str(effect['error']))}" if effect.get("error") else "")
    value = (effect.get("outcome") or {}).get("value")
    if isinstance(value, dict) and "__nylorunAgentTurn" in value:
        return _short(_text(value.get("output")))
    if isinstance(value, dict) and value.get("kind") == "failed":
        return f"failed {value.get('code')}: {_short(str(value.get('message')))}"
    if isinstance(value, dict) and value.get("kind") == "completed":
        return _short(_text(value.get("output")))
    if isinstance(value, dict) and isinstance(value.get("output"), list):
        calls = [str(block.get("name")) for block in value["output"] if block.get("type") == "tool-call"]
        texts = [str(block.get("text", "")) for block in value["output"] if block.get("type") == "text"]
        return _short(f"asks for {', '.join(calls)}" if calls else " ".join(texts))
    return _short(_text(value))


def _text(value: object) -> str:
    if isinstance(value, dict) and {"exitCode", "stdout"} <= value.keys():
        printed = str(value["stdout"]).strip() or str(value.get("stderr", "")).strip()
        return f"exit {value['exitCode']}: {printed}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(printable.split())
    return line if len(line) <= OUTCOME_WIDTH else line[: OUTCOME_WIDTH - 1] + "…"


def _bar(start: float, length: float, whole: float) -> str:
    begin = min(BAR_WIDTH - 1, int(start / whole * BAR_WIDTH))
    end = max(begin + 1, min(BAR_WIDTH, round((start + length) / whole * BAR_WIDTH)))
    return "·" * begin + "█" * (end - begin) + "·" * (BAR_WIDTH - end)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.rjust(width) if index in (2, 3) else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()


def _ms(time: str) -> float:
    return datetime.fromisoformat(time).timestamp() * 1000.0
