"""What both adapters make of a gathered answer: blocks, usage, costs, structured output (model-executor 13.4)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from protocol.jsjson import dumps
from services.model_executor.direct.config import Price
from services.model_executor.direct.failures import CallRefused
from services.model_executor.direct.prompt import Call
from services.model_executor.direct.repair import NotJson, read_model_json, unfenced
from services.model_executor.outcomes import CandidateInvalid, check_candidate


@dataclass(slots=True)
class Usage:
    """Tokens by kind; `input` has neither cached nor written ones."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All tokens."""
        return self.input + self.output + self.cached + self.cache_write

    def usd(self, price: Price) -> float:
        """What they cost in US dollars."""
        return (
            self.input * price.input
            + self.output * price.output
            + self.cached * price.cache_read
            + self.cache_write * price.cache_write
        ) / 1e6

    def document(self, price: Price) -> dict[str, Any]:
        """The candidate's `usage`."""
        usage: dict[str, Any] = {
            "inputTokens": self.input,
            "outputTokens": self.output,
            "totalTokens": self.total,
        }
        for name, value in (
            ("cachedTokens", self.cached),
            ("cacheWriteTokens", self.cache_write),
            ("reasoningTokens", self.reasoning),
        ):
            if value > 0:
                usage[name] = value
        usage["costUsd"] = round(self.usd(price), 10)
        return usage


@dataclass(slots=True)
class Gathered:
    """One whole answer. `finish` is a finish reason of model-executor 3.2."""

    finish: str
    blocks: list[dict[str, Any]]
    usage: Usage | None = None
    request_id: str = ""
    model: str = ""
    warnings: list[str] = field(default_factory=list)


def count(value: Any) -> int | None:
    """A count of tokens; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**53 else None


def tool_block(
    call: Call, index: int, given: str, name: str, arguments: str, used: set[str]
) -> dict[str, Any]:
    """A tool call's block. A missing or repeated id gets one of ours; arguments are repaired or kept raw."""
    if not given or given in used:
        digest = hashlib.sha256(call.effect_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        given = f"call_{digest}_{index}"
    used.add(given)
    block: dict[str, Any] = {"type": "tool-call", "id": given, "name": call.own_name(name), "args": {}}
    if arguments.strip():
        try:
            args = read_model_json(arguments)
        except NotJson:
            args = None
        if isinstance(args, dict):
            block["args"] = args
        else:
            block["raw"] = arguments
    return block


def signed(call: Call, signature: str, **more: Any) -> dict[str, Any]:
    """The metadata of a reasoning block."""
    selected = call.selected
    return {
        "pi": {"provider": selected.provider.name, "model": selected.model, "signature": signature, **more}
    }


def candidate(call: Call, gathered: Gathered) -> str:
    """The candidate's JSON text. Raises CallRefused with `invalid_output`, or `transient` for odd blocks."""
    selected = call.selected
    output = _structured(gathered.blocks) if call.schema is not None else gathered.blocks
    document: dict[str, Any] = {"output": output, "finishReason": gathered.finish}
    if gathered.usage is not None:
        document["usage"] = gathered.usage.document(selected.info.prices)
    evidence: dict[str, Any] = {"resolvedModel": gathered.model or selected.model}
    if gathered.request_id:
        evidence["requestId"] = gathered.request_id
    warnings = [*call.warnings, *gathered.warnings]
    if warnings:
        evidence["warnings"] = warnings
    evidence["extras"] = {
        "producer": {
            "provider": selected.provider.name,
            "api": selected.provider.api,
            "model": selected.model,
        },
        "contextWindow": selected.info.context_window,
        "maxOutputTokens": selected.info.max_output_tokens,
    }
    document["evidence"] = evidence
    try:
        check_candidate(document)
    except CandidateInvalid as error:
        raise CallRefused("transient", f"The provider's answer can't be used: {error}.") from None
    return dumps(document)


def _structured(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if any(block["type"] == "tool-call" for block in blocks):
        return blocks
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    try:
        return [{"type": "json", "value": read_model_json(unfenced(text))}]
    except NotJson:
        raise CallRefused("invalid_output", "The model's final answer is not JSON.") from None
