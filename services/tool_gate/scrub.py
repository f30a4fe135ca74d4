"""Takes credentials out of what a server answers (mcp-pool 8.6). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

REPLACEMENT: Final = "[redacted]"


def scrub(value: Any, secrets: Sequence[str]) -> tuple[Any, int]:
    """The value with every secret in its strings replaced, and how many replacements there were.

    Names of members stay. The value itself is not changed.
    """
    if not secrets:
        return value, 0
    count = 0

    def text(found: str) -> str:
        nonlocal count
        for secret in secrets:
            if secret in found:
                count += found.count(secret)
                found = found.replace(secret, REPLACEMENT)
        return found

    def walk(found: Any) -> Any:
        if isinstance(found, str):
            return text(found)
        if isinstance(found, list):
            return [walk(item) for item in found]
        if isinstance(found, dict):
            return {name: walk(item) for name, item in found.items()}
        return found

    return walk(value), count
