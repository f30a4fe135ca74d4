"""Writes docs/grpc-reference.md from the comments of the protos (`python -m tools.grpc_reference`)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PROTOS: Final = ROOT / "protos" / "whippletree" / "v1"
PAGE: Final = ROOT / "docs" / "grpc-reference.md"
WIDTH: Final = 108
FILES: Final = ("model_executor", "mcp_pool", "sandbox_manager", "admin", "common")
"""In the order in which people need them."""

_BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")
_RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
_FIELD = re.compile(r"(?:(optional|repeated) )?(map<\w+, ?[\w.]+>|[\w.]+) (\w+) = (\d+)(?: \[[^\]]*\])?;")
_VALUE = re.compile(r"([A-Z][A-Z0-9_]*) = (\d+);")
_PASSED_OVER = re.compile(r"(syntax|package|import|reserved)\b.*;")


class NotUnderstood(Exception):
    """A line of a proto that this program does not know; the text names it."""


@dataclass(slots=True)
class Item:
    """A service, message, enum, oneof, call, field or value with its comment and what is in it."""

    kind: str
    name: str
    comment: str
    text: str = ""
    items: list[Item] = field(default_factory=list)


def read(path: Path) -> Item:
    """The file as a tree. Raises NotUnderstood."""
    top = Item("file", path.stem, "")
    stack, comment = [top], list[str]()
    for number, raw in enumerate(path.read_text("utf-8").splitlines(), 1):
        line = raw.strip()
        if line.startswith("//"):
            comment.append(line[2:].strip())
            continue
        said = "\n".join(comment)
        if not line:
            if stack[-1] is top and not top.comment:
                top.comment = said
        elif match := _BLOCK.fullmatch(line):
            item = Item(match[1], match[2], said)
            stack[-1].items.append(item)
            if match[3] is None:
                stack.append(item)
        elif line == "}":
            stack.pop()
        elif match := _RPC.fullmatch(line):
            text = f"({match[2] or ''}{match[3]}) returns ({match[4] or ''}{match[5]})"
            stack[-1].items.append(Item("rpc", match[1], said, text))
        elif match := _FIELD.fullmatch(line):
            text = f"{match[1] or ''} {match[2]}".strip()
            stack[-1].items.append(Item("field", match[3], said, text))
        elif match := _VALUE.fullmatch(line):
            stack[-1].items.append(Item("value", match[1], said, match[2]))
        elif _PASSED_OVER.fullmatch(line):
            if not top.comment:
                top.comment = said
        else:
            raise NotUnderstood(f"{path.name}:{number}: {line}")
        comment = []
    return top


def page() -> str:
    """The whole page."""
    lines = [
        "# gRPC reference",
        "",
        "Every service, call, message and field, from the comments in "
        "[protos/whippletree/v1](../protos/whippletree/v1).",
        "This page is written by `make pages`. [Calling the services](grpc.md) shows how to use them.",
    ]
    for name in FILES:
        tree = read(PROTOS / f"{name}.proto")
        lines += ["", f"## {name}.proto", "", *_prose(tree.comment)]
        for item in tree.items:
            lines += _item(item, "")
    return "\n".join(lines) + "\n"


def _item(item: Item, within: str) -> Iterator[str]:
    name = f"{within}{item.name}"
    yield from ("", f"### {item.kind} {name}", "", *_prose(item.comment))
    rows = [one for one in item.items if one.kind in ("rpc", "field", "value")]
    for one in item.items:
        if one.kind == "oneof":
            rows += [Item("field", inner.name, _one_of(one, inner), inner.text) for inner in one.items]
    if rows:
        titles = {"service": "call | takes and gives", "enum": "value | number"}.get(
            item.kind, "field | type"
        )
        yield from ("", f"| {titles} | meaning |", "| --- | --- | --- |")
        for row in rows:
            yield f"| `{row.name}` | `{row.text}` | {_cell(row.comment)} |"
    for one in item.items:
        if one.kind in ("message", "enum"):
            yield from _item(one, f"{name}.")


def _one_of(choice: Item, inner: Item) -> str:
    return f"{inner.comment} (one of `{choice.name}`)".strip()


def _prose(text: str) -> list[str]:
    """Paragraphs and lists, in lines that fit a terminal."""
    shown: list[str] = []
    for paragraph in text.split("\n\n"):
        parts = re.split(r"\n(?=- )", paragraph)
        shown += [""] * bool(shown)
        for part in parts:
            flat = " ".join(part.split())
            shown += textwrap.wrap(flat, WIDTH, subsequent_indent="  " if flat.startswith("- ") else "")
    return shown or ["–"]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|") or "–"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
