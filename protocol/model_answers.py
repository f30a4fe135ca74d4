"""What a model's answer may say, as engines and the model-executor both know it (model-executor 3.2, 3.3)."""

from __future__ import annotations

from typing import Final

FAILURE_CODES: Final = (
    "context_overflow",
    "rate_limited",
    "overloaded",
    "timeout",
    "transient",
    "content_policy",
    "auth",
    "invalid_request",
    "invalid_output",
    "budget_exhausted",
)
"""The codes of failure outcomes."""

FINISH_REASONS: Final = ("stop", "length", "tool-calls", "content-filter", "other")
"""Why a model stopped."""

TOKEN_COUNTS: Final = (
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cachedTokens",
    "cacheWriteTokens",
    "reasoningTokens",
)
"""The members of a usage that count tokens."""
