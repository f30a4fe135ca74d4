"""File name patterns as minimatch reads them with its defaults (sandbox-manager 9.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wcmatch import glob
from wcmatch._wcparse import PatternLimitException

_FLAGS: Final = glob.GLOBSTAR | glob.BRACE | glob.EXTGLOB | glob.CASE | glob.FORCEUNIX
MOST_ALTERNATIVES: Final = 10_000
"""What `{1..n}` and its kin may expand to."""


class GlobPatternTooWide(ValueError):
    """The braces of a pattern stand for more names than we try."""


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """A test of names against a pattern: `/` parts them, a backslash does too and never escapes.

    Raises GlobPatternTooWide.
    """
    if not pattern:
        return lambda name: name == ""
    try:
        matcher = glob.compile(pattern.replace("\\", "/"), flags=_FLAGS, limit=MOST_ALTERNATIVES)
    except PatternLimitException:
        raise GlobPatternTooWide(
            f"The braces of the pattern stand for more than {MOST_ALTERNATIVES} names."
        ) from None
    return lambda name: bool(matcher.match(name))
