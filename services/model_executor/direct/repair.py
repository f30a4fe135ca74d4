"""JSON that a model wrote: as it is, or with what was cut off at its end put back (model-executor 13.4)."""

from __future__ import annotations

import re
from typing import Any, Final

from protocol.jsjson import JsonError, loads

_FENCE: Final = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)
_TRAILING_COMMA: Final = re.compile(r",(\s*[}\]])")
_STRING: Final = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"?)', re.DOTALL)
"""One string, or the rest of the text where it is not closed: what has no end must not be tried at each quote."""


class NotJson(ValueError):
    """No light repair makes it JSON."""


def read_model_json(text: str) -> Any:
    """The value of a text, repaired when it must be. Raises NotJson."""
    try:
        return loads(text)
    except JsonError:
        pass
    try:
        return loads(_closed(_without_commas(text)))
    except JsonError:
        raise NotJson from None


def unfenced(text: str) -> str:
    """The inside of one Markdown fence, or the text."""
    match = _FENCE.match(text)
    return match[1] if match else text


def _without_commas(text: str) -> str:
    """Without commas before a closing bracket, outside of strings."""
    pieces = _STRING.split(text)
    pieces[::2] = [_TRAILING_COMMA.sub(r"\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _closed(text: str) -> str:
    """With the string and the brackets closed that are open at the end."""
    stack: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif char in "}]" and stack:
            stack.pop()
    if in_string:
        text = (text[:-1] if escaped else re.sub(r"\\u[0-9a-fA-F]{0,3}\Z", "", text)) + '"'
    text = text.rstrip()
    if text.endswith(":"):
        text += "null"
    text = text.rstrip(",")
    return text + "".join(reversed(stack))
