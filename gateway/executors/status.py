"""What a call's gRPC status means for its effect (operations 12.6)."""

from __future__ import annotations

import enum
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from services.common.metadata import NOT_STARTED, find


class Meaning(enum.Enum):
    """What is known about a failed call."""

    NOT_STARTED = "not started"
    """The service refused it before any work: it may be sent again."""
    LOST = "lost"
    """The service or the way to it failed: whether work began is not known."""
    FAULT = "fault"
    """The service failed on the call."""
    TOO_LARGE = "too large"
    """Request or answer is over the message limit."""
    REFUSED_US = "refused us"
    """A fault of the configuration: the bearer, or the service behind the address."""
    INVALID = "invalid"
    """The service does not take this request."""
    LATE = "late"
    """A deadline passed."""


RESENT: Final = frozenset({Meaning.NOT_STARTED, Meaning.LOST, Meaning.FAULT, Meaning.LATE})
"""Failures after which a call may be sent again, where it is of a kind that may."""


class CallFailed(Exception):
    """A call ended without an answer. The text is made for people and holds no content."""

    def __init__(self, meaning: Meaning, text: str) -> None:
        super().__init__(text)
        self.meaning = meaning
        self.text = text
        self.details = ""
        """What the peer said of a fault; to be classified, never to be shown."""
        self.started = False
        """`start` was handed to the channel: the work may have begun."""


_MEANINGS: Final = {
    grpc.StatusCode.UNAVAILABLE: Meaning.LOST,
    grpc.StatusCode.CANCELLED: Meaning.LOST,
    grpc.StatusCode.ABORTED: Meaning.LOST,
    grpc.StatusCode.INTERNAL: Meaning.FAULT,
    grpc.StatusCode.UNKNOWN: Meaning.FAULT,
    grpc.StatusCode.DATA_LOSS: Meaning.FAULT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Meaning.TOO_LARGE,
    grpc.StatusCode.UNAUTHENTICATED: Meaning.REFUSED_US,
    grpc.StatusCode.PERMISSION_DENIED: Meaning.REFUSED_US,
    grpc.StatusCode.UNIMPLEMENTED: Meaning.REFUSED_US,
    grpc.StatusCode.DEADLINE_EXCEEDED: Meaning.LATE,
}


def failure_of(error: Any, service: str) -> CallFailed:
    """What an AioRpcError says. Only texts that our own services made are passed on."""
    code: grpc.StatusCode = error.code()
    if find(error.trailing_metadata(), NOT_STARTED) == "1":
        return CallFailed(Meaning.NOT_STARTED, f"The {service} took no call: {error.details()}")
    meaning = _MEANINGS.get(code, Meaning.INVALID)
    if meaning is Meaning.INVALID:
        return CallFailed(meaning, f"The {service} refused the call: {error.details()}")
    failed = CallFailed(meaning, f"{_TEXTS[meaning].format(service=service)} ({code.name}).")
    if meaning is Meaning.FAULT:
        failed.details = error.details() or ""
    return failed


_TEXTS: Final = {
    Meaning.LOST: "The {service} was lost or can't be reached",
    Meaning.FAULT: "The {service} failed on the call",
    Meaning.TOO_LARGE: "The call or its answer is larger than the message limit of the {service}",
    Meaning.REFUSED_US: "The {service} refuses this gateway; look at its address and bearer",
    Meaning.LATE: "The {service} did not answer in time",
}
