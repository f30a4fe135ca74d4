"""What an HTTP answer of the gate, or the lack of one, becomes (model-executor 5.3)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec

from protocol.jsjson import JsonError, dumps, loads
from services.model_executor.outcomes import failure, invalid_request


class Kind(enum.Enum):
    """How a call to the gate ended, as far as sending it again is concerned."""

    OUTCOME = "outcome"
    """The gate's own outcome: the only kind that is kept."""
    REFUSED_TOKEN = "refused token"
    """401, or a run that is over: a newer token may help."""
    LOST = "lost"
    """Handed over, and the answer did not come: the gate may still have it."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """An outcome's JSON text and how it came about."""

    outcome: str
    kind: Kind = Kind.OTHER


class _Finished(msgspec.Struct):
    outcome: msgspec.Raw


_FINISHED = msgspec.json.Decoder(_Finished)


_NO_TOKEN: Final = (
    "No run token is held for this session; nothing was sent. Cores with gates give one with each run; "
    "for other cores start the model-executor with WHIPPLETREE_MODEL_ROUTE=direct or =scripted."
)


def no_token() -> GateAnswer:
    """Nothing was sent."""
    return GateAnswer(failure("transient", _NO_TOKEN, retryable=True))


def unreachable(origin: str) -> GateAnswer:
    """The gate never had the whole request."""
    return GateAnswer(failure("transient", f"The gates service is unreachable at {origin}.", retryable=True))


def lost() -> GateAnswer:
    """The gate had the request, and its answer is missing or incomplete."""
    return GateAnswer(
        failure(
            "transient",
            "The gates service was lost mid-call; the provider may have billed the call.",
            retryable=True,
        ),
        Kind.LOST,
    )


def silent(seconds: float, *, handed_over: bool) -> GateAnswer:
    """No byte moved for the whole timeout."""
    return GateAnswer(
        failure("transient", f"The gates service sent nothing for {seconds:g} s.", retryable=True),
        Kind.LOST if handed_over else Kind.OTHER,
    )


def read_answer(status: int, body: bytes, token: str = "") -> GateAnswer:
    """The outcome of a complete answer. The token that it answers is in no message of a failure."""
    text = body.decode("utf-8", "replace")
    if status == 200:
        return _finished(text)
    code, message = _error_of(text)
    if token:
        message = message.replace(token, "[redacted]")
    after = f": {message}" if message else ""
    match status:
        case 401:
            return GateAnswer(
                failure("auth", f"The gates service refused the run token{after}", retryable=False),
                Kind.REFUSED_TOKEN,
            )
        case 409 if code == "run_stale":
            return GateAnswer(invalid_request(f"stale run{after}"), Kind.REFUSED_TOKEN)
        case 409:
            return GateAnswer(invalid_request(f"The call changed under the same effect id{after}"))
        case 400:
            return GateAnswer(invalid_request(message or "The gates service refused the request."))
        case _:
            return GateAnswer(
                failure("transient", f"The gates service answered {status}{after}", retryable=True)
            )


def _finished(text: str) -> GateAnswer:
    """The outcome as it was written; what msgspec refuses and JavaScript doesn't is read in full."""
    try:
        return GateAnswer(bytes(_FINISHED.decode(text).outcome).decode(), Kind.OUTCOME)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    try:
        value = loads(text)
    except JsonError:
        value = None
    if isinstance(value, dict) and "outcome" in value:
        return GateAnswer(dumps(value["outcome"]), Kind.OUTCOME)
    return GateAnswer(failure("transient", "The gates service's answer holds no outcome.", retryable=False))


def _error_of(text: str) -> tuple[str, str]:
    """Code and message of an error body; empty texts where there are none."""
    try:
        value = loads(text)
    except JsonError:
        return "", ""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return "", ""
    code, message = error.get("code"), error.get("message")
    return code if isinstance(code, str) else "", message if isinstance(message, str) else ""
