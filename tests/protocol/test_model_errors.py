"""Texts of providers and the codes they stand for (model-executor 11)."""

import pytest

from protocol.model_errors import classify_text, is_overflow, match_text


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


OVERFLOWS = """
prompt is too long: 210000 tokens > 200000 maximum
request_too_large
Input is too long for requested model.
Your input exceeds the context window of this model
This exceeds the model's maximum context length of 8192 tokens
exceeds maximum context length: 8192
The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)
This model's maximum prompt length is 131072
Please reduce the length of the messages or completion
This endpoint's maximum context length is 128000 tokens
exceeds the maximum allowed input length of 4096 tokens
Input (300,000 tokens) is longer than the model's context length (262,144 tokens)
the prompt exceeds the limit of 128000
the request exceeds the available context size
tokens to keep is greater than the context length
context window exceeds limit
Your request exceeded model token limit: 262144
too large for model with 4096 maximum context length
model_context_window_exceeded
prompt too long; exceeded max context length by 12 tokens
prompt too long; exceeded context length
you requested 9000 output tokens
prompt contains at least 9,001 input tokens
for a total of at least 9,001 tokens
context_length_exceeded
Context length exceeded
too many tokens in the request
token limit exceeded
400 status code (no body)
413 (no body)
""".strip().splitlines()


@pytest.mark.parametrize("text", OVERFLOWS)
def test_every_overflow_phrase_is_one_unless_it_is_about_a_rate(text):
    assert classify_text(text) == ("context_overflow", False)
    assert classify_text(text.upper())[0] == "context_overflow"
    assert not is_overflow(f"Rate limit: {text}")
    assert not is_overflow(f"{text} too many requests")
    assert not is_overflow(f"Throttling error: {text}")
    assert not is_overflow(f"Service unavailable: {text}")


@pytest.mark.parametrize(
    "text",
    [
        "exceeds the maximum context length of the model",  # no size
        "maximum prompt length is unknown",
        "requested some output tokens",
        "the limit of 3",
        "said 413 (no body)",
        "500 status code (no body)",
    ],
)
def test_what_only_looks_like_an_overflow_is_none(text):
    assert not is_overflow(text)


ROWS = [
    ("rate_limited", True, "error 429;rate limit;rate-limit;rate_limit;ratelimit;too many requests"),
    (
        "rate_limited",
        False,
        "insufficient_quota;Quota exceeded;out of budget;see billing;usage limit;429 quota exceeded",
    ),
    (
        "overloaded",
        True,
        "overloaded;529 x;503;service unavailable;service-unavailable;serviceunavailable;high demand",
    ),
    ("timeout", True, "it timed out;time out;timeout"),
    (
        "content_policy",
        False,
        "content policy;content_policy;contentpolicy;content filter;content-management;safety;flagged;moderation",
    ),
    (
        "auth",
        False,
        "401 x;(403);unauthorized;unauthorised;forbidden;invalid api key;invalid_api_key;invalidapikey;"
        "incorrect api key;authentication;not configured",
    ),
    (
        "transient",
        True,
        "500;502;504;524;server error;internal error;provider returned error;network error;connection error;"
        "connection refused;connection lost;other side closed;fetch failed;getaddrinfo;ENOTFOUND;EAI_AGAIN;"
        "upstream connect;reset before headers;socket hang up;socket connection was closed;terminated;"
        "websocket closed;websocket error;ended without;stream ended before message_stop;"
        "http2 request did not get a response;retry delay;please retry your request;ResourceExhausted",
    ),
    ("invalid_request", False, "nonsense;4011;1500 x;x503x"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(text, (code, retryable)) for code, retryable, texts in ROWS for text in texts.split(";")],
)
def test_every_phrase_of_every_row_has_the_row_s_code(text, expected):
    assert classify_text(text) == expected
    assert classify_text(f"Before. {text}\nAfter.") == expected
    assert match_text(text) == (None if expected[0] == "invalid_request" else expected)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("prompt is too long", "429"),
        ("rate limit", "overloaded"),
        ("insufficient_quota", "timeout"),
        ("overloaded", "timed out"),
        ("timeout", "flagged"),
        ("moderation", "401"),
        ("forbidden", "server error"),
        ("502", "nonsense"),
    ],
)
def test_the_first_row_wins(first, second):
    assert classify_text(f"{second}; {first}") == classify_text(first)
    assert classify_text(f"{first}; {second}") == classify_text(first)
