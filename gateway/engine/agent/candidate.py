"""What a model answered: a failure outcome, or a candidate checked and made canonical (agent-engine 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.agent.ids import IdScope
from gateway.engine.contract import Absent
from gateway.engine.failures import EngineFailure
from gateway.engine.shapes import is_count, is_finite
from protocol.jsjson import JsonValue
from protocol.model_answers import FAILURE_CODES, FINISH_REASONS, TOKEN_COUNTS

CONTEXT_OVERFLOW: Final = "model.context_overflow"

_KEPT: Final = ("finishReason", "usage", "evidence")
_BLOCK_KEYS: Final = {
    "text": frozenset({"type", "text", "providerMetadata"}),
    "reasoning": frozenset({"type", "text", "providerMetadata"}),
    "json": frozenset({"type", "value"}),
    "tool-call": frozenset({"type", "id", "name", "args", "raw", "providerMetadata"}),
}
_EVIDENCE_KEYS: Final = frozenset({"requestId", "resolvedModel", "warnings", "extras"})


@dataclass(frozen=True, slots=True)
class CandidateCall:
    """One tool call of a candidate, with what was wrong about its id."""

    call_id: str
    tool_name: str
    args: JsonValue
    id_missing: bool
    duplicated_id: str | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate as it is stored, its tool calls in order, and whether it may be written as plain JSON."""

    document: dict[str, Any]
    calls: tuple[CandidateCall, ...]
    plain: bool

    def text(self) -> str:
        """All text blocks in a row."""
        return "".join(block["text"] for block in self.document["output"] if block["type"] == "text")


def read_candidate(value: JsonValue | Absent, ids: IdScope, *, plain: bool = False) -> Candidate:
    """The candidate in a model effect's value.

    Raises EngineFailure with `model.<code>` for a failure outcome and `model.invalid-candidate` for what is
    no candidate. Calls with an empty or repeated id get new ones, in order. `plain` as in `Completed`.
    """
    failure = model_failure(value)
    if failure is not None:
        raise failure
    if isinstance(value, dict) and value.get("kind") == "failed":
        raise _invalid("Model candidate output must be an array")
    if isinstance(value, str):
        return Candidate({"output": [{"type": "text", "text": value}]}, (), plain)
    if not isinstance(value, dict):
        raise _invalid("Model candidate must be an object or string")
    return _canonical(check_candidate(value), ids, plain)


def model_failure(value: JsonValue | Absent) -> EngineFailure | None:
    """The failure, with `model.<code>`, that a model effect's value says; None when it says none."""
    if not isinstance(value, dict) or value.get("kind") != "failed":
        return None
    code = value.get("code")
    message = value.get("message")
    if (
        isinstance(code, str)
        and code in FAILURE_CODES
        and isinstance(message, str)
        and isinstance(value.get("retryable"), bool)
    ):
        return EngineFailure(f"model.{code}", message)
    return None


def check_candidate(value: Mapping[str, Any]) -> dict[str, Any]:
    """The candidate without members that are dropped; raises EngineFailure `model.invalid-candidate`."""
    output = value.get("output")
    if not isinstance(output, list):
        raise _invalid("Model candidate output must be an array")
    for index, block in enumerate(output):
        _check_block(block, f"Model output[{index}]")
    if "finishReason" in value:
        _check_finish_reason(value["finishReason"])
    if "usage" in value:
        _check_usage(value["usage"])
    if "evidence" in value:
        _check_evidence(value["evidence"])
    candidate = {"output": output}
    candidate.update((key, value[key]) for key in _KEPT if key in value)
    return candidate


def _invalid(message: str) -> EngineFailure:
    return EngineFailure("model.invalid-candidate", message)


def _check_block(block: Any, label: str) -> None:
    if not isinstance(block, dict):
        raise _invalid(f"{label} must be an object")
    kind = block.get("type")
    keys = _BLOCK_KEYS.get(kind) if isinstance(kind, str) else None
    if keys is None:
        raise _invalid(f"{label} has unknown type")
    _refuse_unknown(block, keys, label)
    if kind == "json":
        if "value" not in block:
            raise _invalid(f"{label}.value must be JSON-safe")
        return
    if kind == "tool-call":
        for key in ("id", "name"):
            if key in block and not isinstance(block[key], str):
                raise _invalid(f"{label}.{key} must be a string")
        if not isinstance(block.get("args"), dict):
            raise _invalid(f"{label}.args must be a JSON object")
        if "raw" in block and not isinstance(block["raw"], str):
            raise _invalid(f"{label}.raw must be a string")
    elif not isinstance(block.get("text"), str):
        raise _invalid(f"{label}.text must be a string")
    if "providerMetadata" in block and not isinstance(block["providerMetadata"], dict):
        raise _invalid(f"{label}.providerMetadata must be a JSON object")


def _refuse_unknown(value: Mapping[str, Any], keys: frozenset[str], label: str) -> None:
    for key in value:
        if key not in keys:
            raise _invalid(f"{label} has unknown key '{key}'")


def _check_finish_reason(value: Any) -> None:
    if value in ("error", "aborted"):
        raise _invalid("Model candidate finishReason cannot be error or aborted")
    if not isinstance(value, str) or value not in FINISH_REASONS:
        raise _invalid("Model candidate finishReason is invalid")


def _check_usage(value: Any) -> None:
    if not isinstance(value, dict):
        raise _invalid("Model candidate usage must be an object")
    for key, amount in value.items():
        if key == "costUsd":
            if not is_finite(amount):
                raise _invalid("Model candidate usage.costUsd must be a finite number")
        elif key not in TOKEN_COUNTS:
            raise _invalid(f"Model candidate usage has unknown key '{key}'")
        elif not is_count(amount):
            raise _invalid(f"Model candidate usage.{key} must be a non-negative integer")


def _check_evidence(value: Any) -> None:
    if not isinstance(value, dict):
        raise _invalid("Model candidate evidence must be an object")
    _refuse_unknown(value, _EVIDENCE_KEYS, "Model candidate evidence")
    for key in ("requestId", "resolvedModel"):
        if key in value and not isinstance(value[key], str):
            raise _invalid(f"Model candidate evidence.{key} must be a string")
    warnings = value.get("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(warning, str) for warning in warnings):
        raise _invalid("Model candidate evidence.warnings must be an array of strings")
    if not isinstance(value.get("extras", {}), dict):
        raise _invalid("Model candidate evidence.extras must be a JSON object")


def _canonical(candidate: dict[str, Any], ids: IdScope, plain: bool) -> Candidate:
    blocks = candidate["output"]
    uses: dict[str, int] = {}
    for block in blocks:
        if block["type"] == "tool-call":
            given = block.get("id", "")
            uses[given] = uses.get(given, 0) + 1
    if not uses:
        return Candidate(candidate, (), plain)
    stored: list[dict[str, Any]] = []
    calls: list[CandidateCall] = []
    for block in blocks:
        if block["type"] != "tool-call":
            stored.append(block)
            continue
        given = block.get("id", "")
        duplicated = given if given and uses[given] > 1 else None
        call_id = given if given and duplicated is None else ids.new_id("call")
        call = CandidateCall(
            call_id=call_id,
            tool_name=block.get("name") or "unknown",
            args=block["args"],
            id_missing=not given,
            duplicated_id=duplicated,
        )
        calls.append(call)
        kept = {"type": "tool-call", "id": call.call_id, "name": call.tool_name, "args": call.args}
        kept.update((key, block[key]) for key in ("providerMetadata", "raw") if key in block)
        stored.append(kept)
    return Candidate({**candidate, "output": stored}, tuple(calls), plain)
