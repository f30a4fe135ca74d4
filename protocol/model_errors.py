"""Which failure code a provider's error text stands for (model-executor 11). The first row that fits wins."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class ErrorClass(NamedTuple):
    """A failure code of model-executor 3.3, and whether trying again may help."""

    code: str
    retryable: bool


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE | re.DOTALL)


_OVERFLOW: Final = _any(
    r"prompt is too long",
    r"request_too_large",
    r"input is too long for requested model",
    r"exceeds the context window",
    r"exceeds (?:the )?(?:model's )?maximum context length\D{0,40}\d",
    r"input token count.{0,80}exceeds the maximum",
    r"maximum prompt length is \d",
    r"reduce the length of the messages",
    r"maximum context length is \d",
    r"exceeds the maximum allowed input length of \d",
    r"input \([\d,]+ tokens\) is longer than the model's context length",
    r"exceeds the limit of \d",
    r"exceeds the available context size",
    r"greater than the context length",
    r"context window exceeds limit",
    r"exceeded model token limit",
    r"too large for model with [\d,]+ maximum context length",
    r"model_context_window_exceeded",
    r"prompt too long; exceeded (?:max )?context length",
    r"requested [\d,]+ output tokens",
    r"prompt contains.{0,80}?[\d,]+ input tokens",
    r"for a total of.{0,40}?[\d,]+ tokens",
    r"context[_ ]length[_ ]exceeded",
    r"too many tokens",
    r"token limit exceeded",
    r"\A\s*(?:400|413)\b.{0,40}\(no body\)",
)
_NOT_OVERFLOW: Final = _any(
    r"rate limit", r"too many requests", r"\AThrottling error:", r"\AService unavailable:"
)
_RATE: Final = _any(r"\b429\b", r"rate.?limit", r"too many requests")
_QUOTA: Final = _any(r"insufficient_quota", r"quota exceeded", r"out of budget", r"billing", r"usage limit")
_OVERLOADED: Final = _any(r"overloaded", r"\b529\b", r"\b503\b", r"service.?unavailable", r"high demand")
_TIMEOUT: Final = _any(r"timed? ?out", r"timeout")
_POLICY: Final = _any(
    r"content.?policy", r"content.?filter", r"content.?management", r"safety", r"flagged", r"moderation"
)
_AUTH: Final = _any(
    r"\b401\b",
    r"\b403\b",
    r"unauthori[sz]ed",
    r"forbidden",
    r"invalid.?api.?key",
    r"incorrect api key",
    r"authentication",
    r"not configured",
)
_TRANSIENT: Final = _any(
    r"\b(?:429|500|502|503|504|524)\b",
    r"server.?error",
    r"internal.?error",
    r"provider.?returned.?error",
    r"network.?error",
    r"connection.?(?:error|refused|lost)",
    r"other side closed",
    r"fetch failed",
    r"getaddrinfo",
    r"ENOTFOUND",
    r"EAI_AGAIN",
    r"upstream.?connect",
    r"reset before headers",
    r"socket hang up",
    r"socket connection was closed",
    r"terminated",
    r"websocket.?(?:closed|error)",
    r"ended without",
    r"stream ended before",
    r"http2 request did not get a response",
    r"retry delay",
    r"retry your request",
    r"ResourceExhausted",
)


def is_overflow(text: str) -> bool:
    """The prompt does not fit the model's window."""
    return _OVERFLOW.search(text) is not None and _NOT_OVERFLOW.search(text) is None


def is_quota(text: str) -> bool:
    """What is used up will not come back by waiting a little."""
    return _QUOTA.search(text) is not None


def is_policy(text: str) -> bool:
    """A filter refused the content."""
    return _POLICY.search(text) is not None


def match_text(text: str) -> ErrorClass | None:
    """The class of a text; None when no row but the last fits."""
    quota = is_quota(text)
    if is_overflow(text):
        return ErrorClass("context_overflow", False)
    if _RATE.search(text) or quota:
        return ErrorClass("rate_limited", not quota)
    for pattern, found in (
        (_OVERLOADED, ErrorClass("overloaded", True)),
        (_TIMEOUT, ErrorClass("timeout", True)),
        (_POLICY, ErrorClass("content_policy", False)),
        (_AUTH, ErrorClass("auth", False)),
        (_TRANSIENT, ErrorClass("transient", True)),
    ):
        if pattern.search(text):
            return found
    return None


def classify_text(text: str) -> ErrorClass:
    """The class of any text: what no row knows is an invalid request."""
    return match_text(text) or ErrorClass("invalid_request", False)
