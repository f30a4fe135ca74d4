"""The prompt items that a transcript entry stands for (agent-engine 9).

Each function gives the items' JSON text, every item with a comma before it, so that a prompt is a plain
row of pieces. Structure is written in canonical order; only arguments, metadata and references may differ
between what is hashed and what is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.engine.agent.texts import summary_message
from gateway.engine.fragments import Fragment, fragment, quote, shared
from protocol.jsjson import dumps

NOTHING: Final = Fragment(b"", b"")


class _Pieces:
    """Canonical and sent text side by side, as long as they agree in one list."""

    def __init__(self, plain: bool) -> None:
        self._plain = plain
        self._canonical: list[bytes] = []
        self._wire: list[bytes] | None = None

    def add(self, text: bytes) -> None:
        self._canonical.append(text)
        if self._wire is not None:
            self._wire.append(text)

    def add_value(self, value: Any) -> None:
        both = fragment(value, plain=self._plain)
        if both.wire is not both.canonical and self._wire is None:
            self._wire = self._canonical.copy()
        self._canonical.append(both.canonical)
        if self._wire is not None:
            self._wire.append(both.wire)

    def fragment(self) -> Fragment:
        canonical = b"".join(self._canonical)
        return (
            Fragment(canonical, canonical) if self._wire is None else shared(canonical, b"".join(self._wire))
        )


def instructions_item(text: str) -> bytes:
    """The system message; it is the first item, so without a comma."""
    return b'{"content":[%b],"kind":"instructions","role":"system"}' % _text_part(text)


def user_message(text: str) -> bytes:
    """A user message of one text, without a comma before it."""
    return b'{"content":[%b],"kind":"message","role":"user"}' % _text_part(text)


def input_items(event: Mapping[str, Any], plain: bool) -> Fragment:
    """The user's message; nothing for an approval or a response."""
    if event["kind"] not in ("user-message", "interrupt"):
        return NOTHING
    if "content" not in event:
        item = b"," + user_message(event["text"])
        return Fragment(item, item)
    pieces = _Pieces(plain)
    pieces.add(b',{"content":[')
    for index, part in enumerate(event["content"]):
        if index:
            pieces.add(b",")
        if part["type"] == "text":
            pieces.add(_text_part(part["text"]))
        else:
            pieces.add(b'{"mediaType":%b,"reference":' % quote(part["mediaType"]))
            pieces.add_value(part["reference"])
            pieces.add(b',"type":"media"}')
    pieces.add(b'],"kind":"message","role":"user"}')
    return pieces.fragment()


def replays_in_turn_only(candidate: Mapping[str, Any]) -> bool:
    """Whether some reasoning is shown to the model only during its own turn."""
    return any(
        block["type"] == "reasoning" and block.get("providerMetadata", {}).get("replay") == "turn"
        for block in candidate["output"]
    )


def candidate_items(candidate: Mapping[str, Any], plain: bool, *, current_turn: bool) -> Fragment:
    """The assistant's message; nothing when no block is shown."""
    blocks = [
        block for block in candidate["output"] if block["type"] != "reasoning" or _shown(block, current_turn)
    ]
    if not blocks:
        return NOTHING
    pieces = _Pieces(plain)
    pieces.add(b',{"content":[')
    for index, block in enumerate(blocks):
        if index:
            pieces.add(b",")
        _add_block(pieces, block)
    pieces.add(b'],"kind":"message"%b,"role":"assistant"}' % _producer(candidate))
    return pieces.fragment()


def _shown(reasoning: Mapping[str, Any], current_turn: bool) -> bool:
    metadata = reasoning.get("providerMetadata")
    return metadata is not None and (current_turn or metadata.get("replay") != "turn")


def _add_block(pieces: _Pieces, block: Mapping[str, Any]) -> None:
    kind = block["type"]
    metadata = block.get("providerMetadata")
    if kind == "json":
        pieces.add(_text_part(dumps(block["value"])))
        return
    if kind == "tool-call":
        pieces.add(b'{"args":')
        pieces.add_value(block["args"])
        pieces.add(b',"id":%b,"name":%b' % (quote(block["id"]), quote(block["name"])))
        before_metadata = b',"providerMetadata":'
        end = b',"type":"tool-call"}'
    else:
        pieces.add(b"{")
        before_metadata = b'"providerMetadata":'
        comma = b"" if metadata is None else b","
        end = b'%b"text":%b,"type":%b}' % (comma, quote(block["text"]), quote(kind))
    if metadata is not None:
        pieces.add(before_metadata)
        pieces.add_value(metadata)
    pieces.add(end)


def _producer(candidate: Mapping[str, Any]) -> bytes:
    producer = candidate.get("evidence", {}).get("extras", {}).get("producer")
    if not isinstance(producer, dict):
        return b""
    provider, model, api = producer.get("provider"), producer.get("model"), producer.get("api")
    if not isinstance(provider, str) or not isinstance(model, str):
        return b""
    shown = b'"api":%b,' % quote(api) if isinstance(api, str) else b""
    return b',"producer":{%b"model":%b,"provider":%b}' % (shown, quote(model), quote(provider))


def result_items(results: Iterable[Mapping[str, Any]], plain: bool) -> Fragment:
    """One item per tool result, its text the JSON that the model reads."""
    items = b"".join(
        b',{"content":[%b],"kind":"tool-result","status":%b,"toolCallId":%b,"toolName":%b}'
        % (
            _text_part(result_text(result, plain)),
            quote(result["kind"]),
            quote(result["callId"]),
            quote(result["toolName"]),
        )
        for result in results
    )
    return Fragment(items, items)


def result_text(result: Mapping[str, Any], plain: bool) -> str:
    """What a model reads of a tool result: an output as it is, a denial or failure as an object."""
    kind = result["kind"]
    if kind == "completed":
        return dumps(result["output"], plain=plain)
    members = ("kind", "reason") if kind == "denied" else ("kind", "code", "message", "details")
    return dumps({key: result[key] for key in members if key in result}, plain=plain)


def compaction_items(summary: str) -> Fragment:
    """The summary of earlier entries, as a user message."""
    item = b"," + user_message(summary_message(summary))
    return Fragment(item, item)


def _text_part(text: str) -> bytes:
    return b'{"text":%b,"type":"text"}' % quote(text)
