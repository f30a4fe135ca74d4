"""Errors of providers: their class, the server's wait, and a message without secrets (model-executor 13.5)."""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from protocol.model_errors import ErrorClass, classify_text, is_overflow, is_policy, is_quota, match_text

MAX_MESSAGE: Final = 2_000
REDACTED: Final = "[redacted]"

Phase = Literal["status", "event", "connect", "lost", "timeout", "other"]


class CallRefused(Exception):
    """A call that can't be asked, or an answer that is a failure: the outcome's code and message."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.spent: Any = None
        """The usage of an answer that is a failure, where the provider told it."""


class ProviderFailed(Exception):
    """One attempt failed. `phase` says how: an HTTP status, an error event in a stream, or on the way."""

    def __init__(
        self,
        phase: Phase,
        message: str,
        *,
        status: int | None = None,
        type_: str = "",
        code: str = "",
        headers: Mapping[str, str] | None = None,
        empty: bool = False,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.status = status
        self.type = type_
        self.code = code
        self.headers = headers or {}
        self.empty = empty


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure outcome, and whether this call may be tried again at once."""

    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    again: bool = field(default=False, compare=False)


_BY_TYPE: Final = {
    "authentication_error": ErrorClass("auth", False),
    "permission_error": ErrorClass("auth", False),
    "billing_error": ErrorClass("rate_limited", False),
    "insufficient_quota": ErrorClass("rate_limited", False),
    "rate_limit_error": ErrorClass("rate_limited", True),
    "rate_limit_exceeded": ErrorClass("rate_limited", True),
    "timeout_error": ErrorClass("timeout", True),
    "overloaded_error": ErrorClass("overloaded", True),
    "api_error": ErrorClass("transient", True),
    "server_error": ErrorClass("transient", True),
    "context_length_exceeded": ErrorClass("context_overflow", False),
    "request_too_large": ErrorClass("context_overflow", False),
    "content_policy_violation": ErrorClass("content_policy", False),
    "content_filter": ErrorClass("content_policy", False),
    "not_found_error": ErrorClass("invalid_request", False),
}


def classify(failed: ProviderFailed) -> ErrorClass:
    """Structured fields first, then the text."""
    match failed.phase:
        case "connect" | "lost":
            return ErrorClass("transient", True)
        case "timeout":
            return ErrorClass("timeout", True)
        case "event":
            found = _by_name(failed)
            return found if found is not None else match_text(failed.message) or ErrorClass("transient", True)
        case "status":
            return _by_status(failed, failed.status or 0)
        case _:
            return classify_text(failed.message)


def _by_name(failed: ProviderFailed) -> ErrorClass | None:
    found = _BY_TYPE.get(failed.code) or _BY_TYPE.get(failed.type)
    if found is not None and found.code == "rate_limited" and is_quota(failed.message):
        return ErrorClass("rate_limited", False)
    return found


def _by_status(failed: ProviderFailed, status: int) -> ErrorClass:
    text, named = failed.message, _by_name(failed)
    if status in (400, 413, 422) and (
        (named is not None and named.code == "context_overflow") or is_overflow(text)
    ):
        return ErrorClass("context_overflow", False)
    if status in (400, 413) and failed.empty:
        return ErrorClass("context_overflow", False)
    if status in (400, 403) and ((named is not None and named.code == "content_policy") or is_policy(text)):
        return ErrorClass("content_policy", False)
    if status in (401, 403):
        return ErrorClass("auth", False)
    if status == 402 or "billing_error" in (failed.type, failed.code):
        return ErrorClass("rate_limited", False)
    if status == 429:
        quota = is_quota(text) or "insufficient_quota" in (failed.type, failed.code)
        return ErrorClass("rate_limited", not quota)
    if status in (408, 504, 524):
        return ErrorClass("timeout", True)
    if status in (503, 529):
        return ErrorClass("overloaded", True)
    if status in (400, 404, 405, 413, 422):
        return named if named is not None and status == 400 else ErrorClass("invalid_request", False)
    if named is not None:
        return named
    return ErrorClass("transient", True) if status in (409, 425) or status >= 500 else classify_text(text)


def server_wait_ms(headers: Mapping[str, str], now_s: float) -> int | None:
    """The wait that an answer asks for: `retry-after-ms`, else `retry-after` in seconds or as a date."""
    wait = _number(headers.get("retry-after-ms", ""))
    if wait is not None:
        return int(wait)
    after = headers.get("retry-after", "").strip()
    seconds = _number(after)
    if seconds is not None:
        return int(seconds * 1000)
    if after:
        try:
            date = email.utils.parsedate_to_datetime(after)
            # A date of HTTP is one of UTC, also where it doesn't say so.
            at = date if date.tzinfo is not None else date.replace(tzinfo=datetime.UTC)
            return max(0, int((at.timestamp() - now_s) * 1000))
        except (TypeError, ValueError, OverflowError):
            return None
    return None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*[0-9]{1,12}(?:\.[0-9]{1,6})?\s*", text) else None


def failure_of(failed: ProviderFailed, secrets: Sequence[str], now_s: float) -> Failure:
    """The failure outcome of an attempt."""
    found = classify(failed)
    wait = server_wait_ms(failed.headers, now_s)
    again = found.retryable
    asked = failed.headers.get("x-should-retry", "").lower()
    if asked in ("true", "false"):
        again = asked == "true"
    return Failure(found.code, clean(failed.message, secrets), found.retryable, wait, again)


def clean(message: str, secrets: Sequence[str]) -> str:
    """A message without secrets, cut at 2,000 characters."""
    for secret in secrets:
        message = message.replace(secret, REDACTED)
    return message[:MAX_MESSAGE]


def error_fields(body: Any) -> tuple[str, str, str]:
    """Message, type and code of an error's body, wherever a vendor puts them."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict | str):
        body = body["error"]
    if isinstance(body, str):
        return body, "", ""
    if not isinstance(body, dict):
        return "", "", ""
    message, type_, code = body.get("message"), body.get("type"), body.get("code")
    return (
        message if isinstance(message, str) else "",
        type_ if isinstance(type_, str) else "",
        code if isinstance(code, str) else "",
    )
