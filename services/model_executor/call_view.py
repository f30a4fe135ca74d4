"""What the fixture and scripted routes look at in a ModelCall document (model-executor 3.1).

A call can be a megabyte of conversation, and these routes need its last item and a few kinds. msgspec
reads just that; documents that it refuses and JavaScript doesn't (lone surrogates) are read in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from protocol.jsjson import JsonError, JsonValue, loads


class CallInvalid(ValueError):
    """The document is no ModelCall; the text says why and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class ItemView:
    """One prompt item. `content` is its list of parts."""

    kind: str
    role: str
    raw: str | bytes | memoryview | Sequence[JsonValue]

    def content(self) -> Sequence[JsonValue]:
        """The parts. Raises CallInvalid when there is no list of objects."""
        value = self.raw
        if isinstance(value, bytes | memoryview | str):
            parsed = loads(value if isinstance(value, str) else bytes(value))
            if not isinstance(parsed, list):
                raise CallInvalid("A prompt item's content is not a list.")
            value = parsed
        if not all(isinstance(part, dict) for part in value):
            raise CallInvalid("A content part is not an object.")
        return value

    def texts(self) -> Iterator[str | None]:
        """Each part's text; None for a part that is not text."""
        for part in self.content():
            assert isinstance(part, dict)
            text = part.get("text")
            yield text if part.get("type") == "text" and isinstance(text, str) else None


@dataclass(frozen=True, slots=True)
class CallView:
    """The prompt's items and the offered tools' names."""

    items: Sequence[ItemView]
    tools: Sequence[str]


class _Item(msgspec.Struct):
    kind: str
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"[]")


class _Tool(msgspec.Struct):
    name: str


class _Call(msgspec.Struct):
    prompt: list[_Item]
    tools: list[_Tool]


_DECODER = msgspec.json.Decoder(_Call)


def view_call(text: str) -> CallView:
    """Reads a ModelCall document. Raises CallInvalid."""
    try:
        call = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _view_value(text)
    return CallView(
        [ItemView(item.kind, item.role, memoryview(item.content)) for item in call.prompt],
        [tool.name for tool in call.tools],
    )


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
        role, content = item.get("role"), item.get("content", [])
        if not isinstance(content, list):
            raise CallInvalid("A prompt item's content is not a list.")
        items.append(ItemView(item["kind"], role if isinstance(role, str) else "", content))
    return CallView(items, [tool["name"] for tool in tools])
