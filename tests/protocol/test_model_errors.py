"""Texts of providers and the codes they stand for (model-executor 11)."""

import pytest

from protocol.model_errors import classify_text


@pytest.mark.spec("model-executor:15.32", "model-executor:15.33")
@pytest.mark.parametrize(
    ("text", "code", "retryable"),
    [
        ("Rate limit reached … billing", "rate_limited", False),
        ("maximum context length is 8192 tokens", "context_overflow", False),
        ("model not found", "invalid_request", False),
        ("Throttling error: Too many tokens, please wait", "invalid_request", False),
        ("Too many tokens; rate limit", "rate_limited", True),
        ("Model gateway returned 503", "overloaded", True),
        ("HTTP 429", "rate_limited", True),
        ("error 4290", "invalid_request", False),
        ("Too Many Requests", "rate_limited", True),
        ("You exceeded your usage limit", "rate_limited", False),
        ("Overloaded", "overloaded", True),
        ("the request timed out", "timeout", True),
        ("blocked by content-filter", "content_policy", False),
        ("Incorrect API key provided", "auth", False),
        ("Unauthorised", "auth", False),
        ("socket hang up", "transient", True),
        ("getaddrinfo ENOTFOUND x", "transient", True),
        ("502 Bad Gateway", "transient", True),
        ("413 status code (no body)", "context_overflow", False),
        ("prompt is too long: 9 > 8", "context_overflow", False),
        ("", "invalid_request", False),
    ],
)
def test_a_text_has_its_code(text, code, retryable):
    assert classify_text(text) == (code, retryable)
