"""JavaScript regular expressions (placeholder until the bounded matcher lands)."""

from __future__ import annotations

import re
from typing import Any

import regress


class RegexInvalid(ValueError):
    """The pattern is no regular expression in JavaScript."""


class JsRegex:
    """A compiled pattern."""

    __slots__ = ("_regex", "source")

    def __init__(self, source: str, flags: str = "") -> None:
        self.source = source
        try:
            self._regex: Any = regress.Regex(source, flags) if flags else regress.Regex(source)
        except (regress.RegressError, UnicodeEncodeError) as error:
            raise RegexInvalid(str(error)) from None

    def test(self, text: str) -> bool:
        return self._regex.find(text) is not None

    def __str__(self) -> str:
        return "/" + re.sub(r"(?<!\\)/", r"\\/", self.source or "(?:)") + "/"
