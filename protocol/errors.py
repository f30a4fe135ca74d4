"""The errors that cross the Harness API (harness-api 2.5)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypeGuard, get_args

ErrorCode: TypeAlias = Literal[
    "run_not_held",
    "turn_cancelled",
    "ownership_lost",
    "effect_drift",
    "invalid",
    "unavailable",
    "internal",
]

ERROR_CODES: Final[frozenset[str]] = frozenset(get_args(ErrorCode))


def is_error_code(code: object) -> TypeGuard[ErrorCode]:
    """Whether the value is one of the seven codes."""
    return isinstance(code, str) and code in ERROR_CODES


class HarnessApiError(Exception):
    """A refusal as it crosses the wire: one of the seven codes and a message for people."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message


def to_harness_api_error(error: BaseException) -> HarnessApiError:
    """The refusal that stands for any exception.

    An exception with a `code` of the seven keeps it, every other one is `internal`. The message is the
    exception's own, so callers only pass exceptions whose text may leave the process.
    """
    if isinstance(error, HarnessApiError):
        return error
    code = getattr(error, "code", None)
    return HarnessApiError(code if is_error_code(code) else "internal", str(error))
