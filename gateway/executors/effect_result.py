"""How the end of a tool's call becomes an outcome or an exception."""

from __future__ import annotations

from typing import Any

from gateway.executors.contract import AbortSignal, ExecutionFailed, RunAborted
from gateway.executors.status import CallFailed, Meaning
from protocol.jsjson import JsonError, JsonValue, Parsed, parse


def answer_of(result: Any, signal: AbortSignal) -> Parsed:
    """The outcome in a result {outcome | raised | aborted}. Raises RunAborted, ExecutionFailed."""
    if result.HasField("outcome"):
        return parsed_outcome(result.outcome.text)
    if result.HasField("raised"):
        raise ExecutionFailed(result.raised.message)
    if result.HasField("aborted"):
        raise aborted_error(signal)
    raise ExecutionFailed("The service's answer has no result.")


def parsed_outcome(text: str) -> Parsed:
    """An outcome document. Raises ExecutionFailed when it is not JSON."""
    try:
        return parse(text)
    except JsonError:
        raise ExecutionFailed("The service's answer is not JSON.") from None


def aborted_error(signal: AbortSignal) -> Exception:
    """What an aborted call raises: the run's abort, or a fault when the run was not aborted."""
    if signal.abort is not None:
        return RunAborted(signal.abort)
    return ExecutionFailed("The call was stopped by the service.")


def failed_outcome(failure: CallFailed, too_large_code: str) -> Parsed:
    """The outcome of a call over the message limit. Raises ExecutionFailed for every other failure."""
    if failure.meaning is Meaning.TOO_LARGE:
        outcome: dict[str, JsonValue] = {"kind": "failed", "code": too_large_code, "message": failure.text}
        return Parsed(outcome, plain=True)
    if failure.started:
        raise ExecutionFailed(f"{failure.text} The call may have run and is not sent again.")
    raise ExecutionFailed(failure.text)
