"""A ModelCall as both adapters read it: checked, cleaned, with the history of other models cut down.

model-executor 3.1, 13.3 (ids and names) and 13.6.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.jsjson import JsonError, dumps, loads
from services.model_executor.direct.config import ANTHROPIC, Selected
from services.model_executor.direct.failures import CallRefused
from services.model_executor.direct.media import File, Files, Reference, check_reference, reference_of

REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text")
NO_RESULT: Final = "No result was provided for this tool call."
NO_OUTPUT: Final = "(no tool output)"
SEE_IMAGE: Final = "(see the image below)"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class Call:
    """One call, ready for an adapter."""

    selected: Selected
    effect_id: str
    execution_id: str
    items: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    temperature: Any
    max_output_tokens: int
    config: dict[str, Any]
    schema: Any
    names: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: Files = field(default_factory=dict)
    """The files that `references` names, once they are there."""

    def references(self) -> list[Reference]:
        """The files that go along. Raises CallRefused for one that the model can't be given."""
        found = [
            reference_of(part)
            for item in self.items
            if item["kind"] != "instructions" and item.get("role") != "assistant"
            for part in item["content"]
            if part.get("type") == "media"
        ]
        for reference in found:
            check_reference(reference, self.selected.info.images)
        return found

    def parts_of(self, item: Mapping[str, Any]) -> list[str | File]:
        """The parts of an item that is not the assistant's: texts, files that are texts among them, and images."""
        parts: list[str | File] = []
        for part in item["content"]:
            if part.get("type") == "text":
                parts.append(part["text"])
            elif part.get("type") == "media":
                file = self.files[reference_of(part)]
                parts.append(file if file.reference.is_image else file.text)
        return parts

    def tool_name(self, name: str) -> str:
        """The name at the provider; answers are mapped back with `own_name`."""
        if _NAME.fullmatch(name):
            return name
        alias = _fitted(name, 64, always=True)
        self.names[alias] = name
        return alias

    def own_name(self, name: str) -> str:
        """The tool's own name."""
        return self.names.get(name, name)

    def call_id(self, given: str) -> str:
        """A tool call's id as the provider takes it."""
        if self.selected.provider.api == ANTHROPIC:
            return given if _NAME.fullmatch(given) else _fitted(given, 64)
        return given if len(given) <= 40 else _fitted(given, 40)

    def system(self) -> str:
        """The system prompt, with the line that asks for structured output."""
        texts = [
            part["text"]
            for item in self.items
            if item["kind"] == "instructions"
            for part in item["content"]
            if part.get("type") == "text"
        ]
        if self.schema is not None:
            texts.append(
                "Give the final answer as JSON that matches this schema, and nothing else; "
                f"use tools first where they are needed: {dumps(self.schema)}"
            )
        return "\n".join(texts)


def _fitted(text: str, limit: int, *, always: bool = False) -> str:
    """A text of allowed characters; with a part of its digest when it was cut (or `always`)."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    fitted = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    if len(fitted) > limit or always or not fitted:
        fitted = f"{fitted[: limit - 9]}_{digest}"
    return fitted


def read_call(text: str, effect_id: str, select: Any) -> Call:
    """Reads a ModelCall document. Raises CallRefused with `invalid_request`."""
    try:
        document = loads(text)
    except JsonError:
        raise CallRefused("invalid_request", "The call is not JSON.") from None
    if not isinstance(document, dict):
        raise CallRefused("invalid_request", "The call is not an object.")
    if re.search(r"\\u[dD][89a-fA-F]", text):
        document = _without_surrogates(document)
    prompt, tools = document.get("prompt"), document.get("tools")
    if not isinstance(prompt, list) or not all(_is_item(item) for item in prompt):
        raise CallRefused("invalid_request", "The call's prompt is not a list of items.")
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools
    ):
        raise CallRefused("invalid_request", "The call's tools are not a list of tools with names.")
    if not all(isinstance(tool.get("inputSchema") or {}, dict) for tool in tools):
        raise CallRefused("invalid_request", "The inputSchema of a tool of the call is not an object.")
    model = document.get("model")
    model = model if isinstance(model, dict) else {}
    model_id = model.get("id")
    selected: Selected = select(model_id if isinstance(model_id, str) and model_id else None)
    controls, config = model.get("controls"), model.get("config")
    controls = controls if isinstance(controls, dict) else {}
    maximum = controls.get("maxOutputTokens")
    return Call(
        selected=selected,
        effect_id=effect_id,
        execution_id=str(document.get("executionId") or ""),
        items=_history(prompt, selected),
        tools=tools,
        temperature=controls.get("temperature"),
        max_output_tokens=maximum if isinstance(maximum, int) and maximum > 0 else 0,
        config=dict(config) if isinstance(config, dict) else {},
        schema=document.get("outputSchema"),
    )


def _is_item(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("kind"), str)
        and isinstance(item.get("content"), list)
        and all(_is_part(part) for part in item["content"])
    )


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") in ("text", "reasoning"):
        return isinstance(part.get("text"), str)
    if part.get("type") == "tool-call":
        return isinstance(part.get("id"), str) and isinstance(part.get("name"), str)
    return True


def _history(prompt: Sequence[dict[str, Any]], selected: Selected) -> list[dict[str, Any]]:
    """The items, with an error result for every tool call that got none."""
    items: list[dict[str, Any]] = []
    waiting: dict[str, str] = {}

    def settle() -> None:
        for call_id, name in waiting.items():
            items.append(
                {
                    "kind": "tool-result",
                    "toolCallId": call_id,
                    "toolName": name,
                    "status": "failed",
                    "content": [{"type": "text", "text": NO_RESULT}],
                }
            )
        waiting.clear()

    for item in prompt:
        kind = item["kind"]
        if kind == "tool-result":
            waiting.pop(str(item.get("toolCallId")), None)
        elif kind != "instructions":
            settle()
        if kind == "message" and item.get("role") == "assistant":
            content = _assistant(item, selected)
            waiting = {part["id"]: part["name"] for part in content if part["type"] == "tool-call"}
            items.append({**item, "content": content})
        else:
            items.append(item)
    settle()
    return items


def _assistant(item: Mapping[str, Any], selected: Selected) -> list[dict[str, Any]]:
    """The parts that may be sent back: reasoning only as the selected model signed it."""
    producer = item.get("producer")
    foreign = isinstance(producer, dict) and (
        producer.get("provider") != selected.provider.name or producer.get("model") != selected.model
    )
    return [
        part
        for part in item["content"]
        if part.get("type") in ("text", "tool-call")
        or (part.get("type") == "reasoning" and not foreign and signature_of(part, selected) is not None)
    ]


def signature_of(part: Mapping[str, Any], selected: Selected) -> str | None:
    """The signature of a reasoning part when it is the selected model's own."""
    metadata = part.get("providerMetadata")
    pi = metadata.get("pi") if isinstance(metadata, dict) else None
    if not isinstance(pi, dict):
        return None
    signature = pi.get("signature")
    if pi.get("provider") != selected.provider.name or pi.get("model") != selected.model:
        return None
    if not isinstance(signature, str):
        return None
    is_field = signature in REASONING_FIELDS
    return None if is_field == (selected.provider.api == ANTHROPIC) else signature


def merge_config(call: Call, body: dict[str, Any], reserved: frozenset[str]) -> None:
    """Adds the call's `config` to a request; reserved members are left out with a warning."""
    for name, value in call.config.items():
        if name in reserved:
            call.warnings.append(f"config.{name} is not passed on")
        else:
            body[name] = value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", name): _without_surrogates(one) for name, one in value.items()}
    return value
