"""A call as an OpenAI-compatible `POST /chat/completions` (model-executor 13.3)."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from urllib.parse import urlsplit

from protocol.jsjson import dumps
from services.model_executor.direct.media import File
from services.model_executor.direct.prompt import NO_OUTPUT, SEE_IMAGE, Call, merge_config, signature_of

RESERVED: Final = frozenset(
    {
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
    }
)
_VENDOR: Final = "api.openai.com"


def openai_request(call: Call) -> dict[str, Any]:
    """The request's body. Raises CallRefused."""
    provider = call.selected.provider
    compat, vendor = provider.compat, urlsplit(provider.base_url).hostname == _VENDOR
    body: dict[str, Any] = {"model": call.selected.model, "messages": _messages(call), "stream": True}
    if compat.get("usage_in_stream", True):
        body["stream_options"] = {"include_usage": True}
    if call.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": call.tool_name(tool["name"]),
                    "description": tool.get("description") or "",
                    "parameters": tool.get("inputSchema") or {"type": "object"},
                },
            }
            for tool in call.tools
        ]
    if call.temperature is not None:
        body["temperature"] = call.temperature
    if call.max_output_tokens:
        field = compat.get("max_tokens_field", "max_completion_tokens" if vendor else "max_tokens")
        body[field] = call.max_output_tokens
    if call.schema is not None and compat.get("native_schema") and not call.tools:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": call.schema, "strict": False},
        }
    if call.execution_id and compat.get("prompt_cache_key", vendor):
        body["prompt_cache_key"] = _cache_key(call.execution_id)
    if vendor:
        body["store"] = False
    merge_config(call, body, RESERVED)
    return body


def _cache_key(execution_id: str) -> str:
    if len(execution_id) <= 64:
        return execution_id
    return hashlib.sha256(execution_id.encode()).hexdigest()


def _messages(call: Call) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    system = call.system()
    if system:
        role = "developer" if call.selected.provider.compat.get("developer_role") else "system"
        messages.append({"role": role, "content": system})
    shown: list[File] = []
    for item in call.items:
        kind = item["kind"]
        if kind != "tool-result" and shown:
            # A tool message takes no images: those of a run of results follow it.
            messages.append({"role": "user", "content": [_part(file) for file in shown]})
            shown = []
        if kind == "tool-result":
            parts = call.parts_of(item)
            images = [part for part in parts if isinstance(part, File)]
            shown += images
            texts = [part for part in parts if isinstance(part, str)]
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call.call_id(str(item.get("toolCallId"))),
                    "content": "\n".join(texts) or (SEE_IMAGE if images else NO_OUTPUT),
                }
            )
        elif kind == "message" and item.get("role") == "assistant":
            message = _assistant(call, item)
            if message is not None:
                messages.append(message)
        elif kind in ("message", "context"):
            parts = call.parts_of(item)
            if len(parts) == 1 and isinstance(parts[0], str):
                messages.append({"role": "user", "content": parts[0]})
            elif parts:
                messages.append({"role": "user", "content": [_part(part) for part in parts]})
    if shown:
        messages.append({"role": "user", "content": [_part(file) for file in shown]})
    return messages


def _part(part: str | File) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:{part.reference.media_type};base64,{part.base64}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(call: Call, item: dict[str, Any]) -> dict[str, Any] | None:
    texts = [part["text"] for part in item["content"] if part["type"] == "text" and part["text"].strip()]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    calls = [
        {
            "id": call.call_id(part["id"]),
            "type": "function",
            "function": {"name": call.tool_name(part["name"]), "arguments": dumps(part.get("args") or {})},
        }
        for part in item["content"]
        if part["type"] == "tool-call"
    ]
    if calls:
        message["tool_calls"] = calls
    reasoning: dict[str, list[str]] = {}
    for part in item["content"]:
        field = signature_of(part, call.selected) if part["type"] == "reasoning" else None
        if field is not None:
            reasoning.setdefault(field, []).append(part["text"])
    message |= {field: "\n".join(found) for field, found in reasoning.items()}
    return message if texts or calls or reasoning else None
