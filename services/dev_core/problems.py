"""What can be wrong with a request of a person: a code for programs, a text that names the way out."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

ProblemCode: TypeAlias = Literal[
    "invalid",
    "manifest_invalid",
    "unauthorized",
    "cross_site",
    "not_found",
    "method_not_allowed",
    "turn_running",
    "turn_waiting",
    "turn_paused",
    "turn_uncertain",
    "turn_over",
    "not_paused",
    "already_settled",
    "no_workspace",
    "too_large",
    "host_not_allowed",
    "unavailable",
    "internal",
]

STATUS_OF: Final[dict[ProblemCode, int]] = {
    "invalid": 400,
    "manifest_invalid": 400,
    "unauthorized": 401,
    "cross_site": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "turn_running": 409,
    "turn_waiting": 409,
    "turn_paused": 409,
    "turn_uncertain": 409,
    "turn_over": 409,
    "not_paused": 409,
    "already_settled": 409,
    "no_workspace": 409,
    "too_large": 413,
    "host_not_allowed": 421,
    "internal": 500,
    "unavailable": 503,
}


class Problem(Exception):
    """A request that is refused. Nothing was written."""

    def __init__(self, code: ProblemCode, message: str) -> None:
        super().__init__(message)
        self.code: ProblemCode = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS_OF[self.code]


def no_session(session_id: str) -> Problem:
    """The session does not exist."""
    return Problem("not_found", f"There is no session {session_id!r}: GET /v1/sessions lists them.")


def turn_is_open(session_id: str, status: str) -> Problem:
    """Why a session whose turn is under way takes no message, and what to do."""
    match status:
        case "paused":
            return Problem(
                "turn_paused",
                f"The turn of session {session_id} is paused and waits for a person: answer its interactions "
                f"with POST /v1/sessions/{session_id}/approve or /respond, or end it with /cancel.",
            )
        case "uncertain":
            return Problem(
                "turn_uncertain",
                f"The turn of session {session_id} is uncertain: a call may have run and nobody knows its "
                f"outcome. Cancel the turn first (POST /v1/sessions/{session_id}/cancel), then send the "
                "message again.",
            )
        case "waiting":
            return Problem(
                "turn_waiting",
                f"The turn of session {session_id} waits for the outcome of an Action or of a linked "
                f"session: let it arrive, or end the turn with POST /v1/sessions/{session_id}/cancel.",
            )
        case _:
            return Problem(
                "turn_running",
                f"A turn of session {session_id} is running: wait for its end (GET "
                f"/v1/sessions/{session_id}/events shows it), or end it with POST "
                f"/v1/sessions/{session_id}/cancel.",
            )
