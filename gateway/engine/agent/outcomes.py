"""What a tool's outcome does to its call (agent-engine 15.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.engine.agent import texts
from gateway.engine.agent.plan import PlanCall
from gateway.engine.agent.sealing import issue_details
from gateway.engine.agent.validation import NoVerdict, validate
from gateway.engine.contract import ABSENT, Absent
from gateway.engine.failures import RunStopped, WorkFailed, failure_code
from protocol.jsjson import JsonValue
from protocol.json_schema import Invalid, Schema

_OUTCOME_KINDS: Final = frozenset({"completed", "denied", "failed", "interaction-required", "deferred"})


def apply_value(
    call: PlanCall, value: JsonValue | Absent, output_schema: Schema | None, interaction_id: str
) -> None:
    """Takes a tool effect's value: the call settles, asks, or is deferred."""
    kind = outcome_kind(value)
    if kind is None or not isinstance(value, dict):
        call.settle(_completed(value, output_schema))
    elif kind == "interaction-required":
        _ask(call, value, interaction_id)
    elif kind == "deferred":
        call.status = "deferred"
        _keep_token(call, value)
    else:
        call.settle(settled_outcome(value, output_schema))


def outcome_kind(value: JsonValue | Absent) -> str | None:
    """The kind of a value that is an outcome; None for any other, which is an output itself."""
    kind = value.get("kind") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) and kind in _OUTCOME_KINDS else None


def settled_outcome(outcome: Mapping[str, Any], output_schema: Schema | None) -> dict[str, Any]:
    """The result, without the call's ids, of an outcome that is completed, denied or failed."""
    kind = outcome["kind"]
    if kind == "completed":
        return _completed(outcome.get("output", ABSENT), output_schema)
    if kind == "denied":
        reason = outcome.get("reason")
        if not isinstance(reason, str):
            return failed("tool.invalid-tool-result", texts.INVALID_DENIAL)
        return {"kind": "denied", "reason": reason}
    code, message = outcome.get("code"), outcome.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return failed("tool.invalid-tool-result", texts.INVALID_RESULT)
    return failed(code, message)


def apply_failure(call: PlanCall, failure: WorkFailed, *, aborted: bool) -> None:
    """Settles a call whose effect failed at the host."""
    otherwise = "tool.cancelled" if aborted or isinstance(failure, RunStopped) else "tool.execution-failed"
    call.settle(failed(failure_code(failure, otherwise), failure.message))


def failed(code: str, message: str) -> dict[str, Any]:
    """A failed result without the call's ids."""
    return {"kind": "failed", "code": code, "message": message}


def _completed(output: JsonValue | Absent, output_schema: Schema | None) -> dict[str, Any]:
    if output_schema is not None:
        try:
            checked = validate(output_schema, output)
        except NoVerdict as failure:
            return failed("tool.execution-failed", failure.message)
        if isinstance(checked, Invalid):
            result = failed("tool.invalid-output", "; ".join(issue.message for issue in checked.issues))
            return {**result, "details": issue_details("output", checked.issues)}
        output = checked.value
    if output is ABSENT:
        return failed("json.invalid-data", texts.MISSING_OUTPUT)
    return {"kind": "completed", "output": output}


def _ask(call: PlanCall, value: Mapping[str, Any], interaction_id: str) -> None:
    interaction = value.get("interaction")
    if (
        not isinstance(interaction, dict)
        or interaction.get("kind") not in ("approval", "response")
        or not isinstance(interaction.get("prompt"), str)
    ):
        call.settle(failed("tool.invalid-tool-result", texts.INVALID_INTERACTION))
        return
    call.status = "interaction"
    call.interaction_phase = "execute"
    call.interaction = {**interaction, "id": interaction_id}
    _keep_token(call, value)


def _keep_token(call: PlanCall, value: Mapping[str, Any]) -> None:
    if "token" in value:
        call.token = value["token"]
