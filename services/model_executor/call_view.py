"""What the fixture and scripted routes look at in a ModelCall document (model-executor 3.1).

A call can be a megabyte of conversation, and these routes need its last item and a few kinds. msgspec
reads just that; documents that it refuses and JavaScript doesn't (lone surrogates) are read in full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from protocol.jsjson import JsonError, JsonValue, loads


class CallInvalid(ValueError):
    """The document is no ModelCall; the text says why and quotes nothing of it."""


class ItemView(msgspec.Struct):
    """One prompt item. `content` is a list of parts, or the JSON text of what should be one."""

    kind: str
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"[]")

    def parts(self) -> Sequence[JsonValue]:
        """The parts. Raises CallInvalid when there is no list of objects."""
        value: object = self.content
        if isinstance(value, msgspec.Raw):
            value = loads(bytes(value))
        if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
            raise CallInvalid("A prompt item's content is not a list of parts.")
        return value

    def texts(self) -> list[str | None]:
        """Each part's text; None for a part that is not text. Raises CallInvalid as `parts` does."""
        if isinstance(self.content, msgspec.Raw):
            with contextlib.suppress(msgspec.DecodeError):
                return [part.text if part.type == "text" else None for part in _PARTS.decode(self.content)]
        return [_text_of(part) for part in self.parts()]


class ToolView(msgspec.Struct):
    """One offered tool."""

    name: str


class CallView(msgspec.Struct):
    """The prompt's items and the offered tools."""

    prompt: list[ItemView]
    tools: list[ToolView]


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


_PARTS = msgspec.json.Decoder(list[_Part])
_CALLS = msgspec.json.Decoder(CallView)


def view_call(text: str) -> CallView:
    """Reads a ModelCall document. Raises CallInvalid."""
    try:
        return _CALLS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _view_value(text)


def _view_value(text: str) -> CallView:
    try:
        call = loads(text)
    except JsonError:
        raise CallInvalid("The call is not JSON.") from None
    if not isinstance(call, dict):
        raise CallInvalid("The call is not an object.")
    prompt, tools = call.get("prompt"), call.get("tools")
    if not isinstance(prompt, list) or not all(
        isinstance(item, dict) and isinstance(item.get("kind"), str) for item in prompt
    ):
        raise CallInvalid("The call's prompt is not a list of items.")
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools
    ):
        raise CallInvalid("The call's tools are not a list of tools with names.")
    items = []
    for item in prompt:
        role = item.get("role")
        items.append(ItemView(item["kind"], role if isinstance(role, str) else "", item.get("content", [])))
    return CallView(items, [ToolView(tool["name"]) for tool in tools])


def _text_of(part: JsonValue) -> str | None:
    if not isinstance(part, dict) or part.get("type") != "text":
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None
