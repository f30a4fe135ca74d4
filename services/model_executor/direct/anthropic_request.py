"""A call as an Anthropic `POST /v1/messages` (model-executor 13.3)."""

from __future__ import annotations

from typing import Any, Final

from services.model_executor.direct.media import File
from services.model_executor.direct.prompt import NO_OUTPUT, Call, merge_config, signature_of

RESERVED: Final = frozenset({"model", "messages", "system", "tools", "stream", "max_tokens"})
_CACHED: Final = {"type": "ephemeral"}
_BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192}
_LARGE: Final = 16384
_LEAST: Final = 1024


def anthropic_request(call: Call) -> dict[str, Any]:
    """The request's body. Raises CallRefused."""
    info = call.selected.info
    limit = info.max_output_tokens
    most = min(call.max_output_tokens, limit) if call.max_output_tokens else limit
    body: dict[str, Any] = {
        "model": call.selected.model,
        "max_tokens": most,
        "messages": _messages(call),
        "stream": True,
    }
    system = call.system()
    if system:
        body["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    tools = _tools(call)
    if tools:
        body["tools"] = tools
    thinking = _thinking(call, body, most)
    if call.temperature is not None:
        if thinking:
            call.warnings.append("temperature is not passed on while thinking is on")
        else:
            body["temperature"] = call.temperature
    if call.schema is not None and call.selected.provider.compat.get("native_schema") and not call.tools:
        body.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": call.schema}
    merge_config(call, body, RESERVED)
    return body


def _thinking(call: Call, body: dict[str, Any], most: int) -> bool:
    effort = call.config.pop("reasoning_effort", None)
    mode = call.selected.provider.compat.get("thinking")
    if effort in (None, "none"):
        return False
    if mode == "adaptive":
        body["thinking"] = {"type": "adaptive"}
        body["output_config"] = {"effort": "low" if effort == "minimal" else effort}
        return True
    if mode == "budget":
        budget = min(_BUDGETS.get(str(effort), _LARGE), most - 1024)
        if budget >= _LEAST:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            return True
        call.warnings.append("thinking is off: max_tokens leaves no room for it")
        return False
    call.warnings.append("config.reasoning_effort is not passed on: compat.thinking is not set")
    return False


def _tools(call: Call) -> list[dict[str, Any]]:
    tools = [
        {
            "name": call.tool_name(tool["name"]),
            "description": tool.get("description") or "",
            "input_schema": {**(tool.get("inputSchema") or {}), "type": "object"},
        }
        for tool in call.tools
    ]
    if not tools:
        # Tool blocks in the history are refused when no tool is declared.
        used = dict.fromkeys(
            call.tool_name(part["name"])
            for item in call.items
            for part in item["content"]
            if part.get("type") == "tool-call"
        )
        tools = [{"name": name, "description": "", "input_schema": {"type": "object"}} for name in used]
    if tools:
        tools[-1]["cache_control"] = _CACHED
    return tools


def _messages(call: Call) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in call.items:
        kind = item["kind"]
        if kind == "instructions":
            continue
        if kind == "message" and item.get("role") == "assistant":
            blocks, role = _assistant(call, item), "assistant"
        elif kind == "tool-result":
            blocks, role = [_result(call, item)], "user"
        else:
            blocks = _blocks(call, item)
            role = "user"
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    for message in messages:
        if message["role"] == "user":
            # Results have to stand before any text of their message.
            message["content"].sort(key=lambda block: block["type"] != "tool_result")
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"][-1] = {**message["content"][-1], "cache_control": _CACHED}
            break
    return messages


def _blocks(call: Call, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Texts that are not blank, and images."""
    blocks: list[dict[str, Any]] = []
    for part in call.parts_of(item):
        if isinstance(part, File):
            source = {"type": "base64", "media_type": part.reference.media_type, "data": part.base64}
            blocks.append({"type": "image", "source": source})
        elif part.strip():
            blocks.append({"type": "text", "text": part})
    return blocks


def _result(call: Call, item: dict[str, Any]) -> dict[str, Any]:
    parts = call.parts_of(item)
    texts = [part for part in parts if isinstance(part, str)]
    content: Any = "\n".join(texts) or NO_OUTPUT
    if len(texts) < len(parts):
        content = _blocks(call, item)
    return {
        "type": "tool_result",
        "tool_use_id": call.call_id(str(item.get("toolCallId"))),
        "content": content,
        "is_error": item.get("status") != "completed",
    }


def _assistant(call: Call, item: dict[str, Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in item["content"]:
        if part["type"] == "text":
            if part["text"].strip():
                blocks.append({"type": "text", "text": part["text"]})
        elif part["type"] == "tool-call":
            blocks.append(
                {
                    "type": "tool_use",
                    "id": call.call_id(part["id"]),
                    "name": call.tool_name(part["name"]),
                    "input": part.get("args") or {},
                }
            )
        else:
            signature = signature_of(part, call.selected)
            redacted = part["providerMetadata"]["pi"].get("redacted") is True
            if redacted:
                blocks.append({"type": "redacted_thinking", "data": signature})
            else:
                blocks.append({"type": "thinking", "thinking": part["text"], "signature": signature})
    return blocks
