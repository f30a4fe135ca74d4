"""Failure outcomes of model calls, and what a candidate may look like (model-executor 3.2 and 3.3)."""

from __future__ import annotations

import math
from typing import Any, Final

from protocol.jsjson import JsonValue, dumps
from protocol.model_answers import FINISH_REASONS, TOKEN_COUNTS

_BLOCKS: Final = {
    "text": ({"type", "text"}, {"providerMetadata"}),
    "reasoning": ({"type", "text"}, {"providerMetadata"}),
    "json": ({"type", "value"}, set[str]()),
    "tool-call": ({"type", "id", "name", "args"}, {"raw", "providerMetadata"}),
}


class CandidateInvalid(ValueError):
    """What an engine would refuse as a candidate; the text names the member."""


def failure(code: str, message: str, *, retryable: bool, retry_after_ms: int | None = None) -> str:
    """A failure outcome as JSON text."""
    outcome: dict[str, JsonValue] = {
        "kind": "failed",
        "code": code,
        "message": message,
        "retryable": retryable,
    }
    if retry_after_ms is not None:
        outcome["retryAfterMs"] = retry_after_ms
    return dumps(outcome)


def invalid_request(message: str) -> str:
    """A request that can't be served, now or later."""
    return failure("invalid_request", message, retryable=False)


def check_candidate(candidate: Any) -> None:
    """Raises CandidateInvalid unless it is a string or an object that engines take."""
    if isinstance(candidate, str):
        return
    if not isinstance(candidate, dict):
        raise CandidateInvalid("must be a text or an object")
    _closed(candidate, "", {"output"}, {"finishReason", "usage", "evidence"})
    output = candidate["output"]
    if not isinstance(output, list):
        raise CandidateInvalid("output must be a list of blocks")
    for index, block in enumerate(output):
        _check_block(block, f"output[{index}]")
    if "finishReason" in candidate and candidate["finishReason"] not in FINISH_REASONS:
        raise CandidateInvalid(f"finishReason must be one of {', '.join(FINISH_REASONS)}")
    _check_usage(candidate.get("usage", {}))
    _check_evidence(candidate.get("evidence", {}))


def _check_block(block: Any, path: str) -> None:
    if not isinstance(block, dict) or block.get("type") not in _BLOCKS:
        raise CandidateInvalid(f"{path}.type must be one of {', '.join(_BLOCKS)}")
    required, optional = _BLOCKS[block["type"]]
    _closed(block, path, required, optional)
    for name in ("text", "id", "name", "raw"):
        if name in block and not isinstance(block[name], str):
            raise CandidateInvalid(f"{path}.{name} must be a text")
    if "args" in block and not isinstance(block["args"], dict):
        raise CandidateInvalid(f"{path}.args must be an object")


def _check_usage(usage: Any) -> None:
    _closed(usage, "usage", set(), {*TOKEN_COUNTS, "costUsd"})
    for name in TOKEN_COUNTS:
        value = usage.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CandidateInvalid(f"usage.{name} must be a whole number from 0")
    cost = usage.get("costUsd", 0)
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not math.isfinite(cost):
        raise CandidateInvalid("usage.costUsd must be a number")


def _check_evidence(evidence: Any) -> None:
    _closed(evidence, "evidence", set(), {"requestId", "resolvedModel", "warnings", "extras"})
    for name in ("requestId", "resolvedModel"):
        if not isinstance(evidence.get(name, ""), str):
            raise CandidateInvalid(f"evidence.{name} must be a text")
    warnings = evidence.get("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(warning, str) for warning in warnings):
        raise CandidateInvalid("evidence.warnings must be a list of texts")
    if not isinstance(evidence.get("extras", {}), dict):
        raise CandidateInvalid("evidence.extras must be an object")


def _closed(value: Any, path: str, required: set[str], optional: set[str]) -> None:
    if not isinstance(value, dict):
        raise CandidateInvalid(f"{path or 'it'} must be an object")
    prefix = f"{path}." if path else ""
    for name in sorted(required - set(value)):
        raise CandidateInvalid(f"{prefix}{name} is missing")
    for name in value:
        if name not in required | optional:
            raise CandidateInvalid(f"{prefix}{name} is not known")
