"""What happened to one JSON-RPC message on its way over HTTP.

The SDK's transports turn statuses and lost connections into one generic error. So the HTTP layer notes here
what it saw; the context variable says which message a request belongs to (the transports carry a sender's
context over to the task that posts its message).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from services.tool_gate.failures import UpstreamFailure


class Exchange:
    """One message.

    `sent`: the whole request was handed to the operating system. `given_up`: nobody waits for the answer
    any more. `opens`: this is the opening of the connection, whose GET counts as well.
    """

    def __init__(self, *, opens: bool = False) -> None:
        self._on_failure: Callable[[UpstreamFailure], None] | None = None
        self._stop: Callable[[], None] | None = None
        self.opens = opens
        self.sent = False
        self.given_up = False
        self.failure: UpstreamFailure | None = None

    def listen(self, on_failure: Callable[[UpstreamFailure], None]) -> None:
        """Calls it, at once or later, when it is clear that no answer will come."""
        if self.failure is not None:
            on_failure(self.failure)
        self._on_failure = on_failure

    def fail(self, failure: UpstreamFailure) -> None:
        """No answer will come; the first reason counts."""
        if self.failure is None:
            self.failure = failure
            if self._on_failure is not None:
                self._on_failure(failure)

    def streams(self, stop: Callable[[], None] | None) -> None:
        """An answer is being read; `stop` ends that. None: not any more."""
        self._stop = stop
        if stop is not None and self.given_up:
            stop()

    def give_up(self) -> None:
        """Ends what is still read for it, and keeps the transport from asking for more."""
        self.given_up = True
        if self._stop is not None:
            self._stop()


current: ContextVar[Exchange | None] = ContextVar("tool_gate_exchange", default=None)
"""The message that is being sent."""
