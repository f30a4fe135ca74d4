"""Errors of the gate itself: a status and `{error: {code, message}}` (mcp-pool 9.1)."""

from __future__ import annotations


class GateProblem(Exception):
    """A request is refused. The message is made for people and holds no secret."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def invalid(message: str) -> GateProblem:
    """The request is not one of the contract's."""
    return GateProblem(400, "invalid_request", message)


def unauthorized(message: str) -> GateProblem:
    """There is no valid run token."""
    return GateProblem(401, "gate_unauthorized", message)


def forbidden(message: str) -> GateProblem:
    """The token is for another session."""
    return GateProblem(403, "gate_forbidden", message)


def stale(message: str) -> GateProblem:
    """The token's lease is over."""
    return GateProblem(409, "run_stale", message)


def conflict(message: str) -> GateProblem:
    """The key stands for another call."""
    return GateProblem(409, "gate_conflict", message)


def unavailable(message: str) -> GateProblem:
    """The gate can't do its work at the moment; nothing was started."""
    return GateProblem(503, "unavailable", message)
