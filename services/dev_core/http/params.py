"""Parts of a request's URL."""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from services.dev_core.problems import Problem

_MAX_NUMBER: Final = 2**53 - 1


def number(request: web.Request, name: str, default: int, *, most: int = _MAX_NUMBER, least: int = 0) -> int:
    """A whole number of the query string. Raises Problem."""
    text = request.query.get(name)
    return default if text is None else whole(text, name, most=most, least=least)


def whole(text: str, name: str, *, most: int = _MAX_NUMBER, least: int = 0) -> int:
    """A whole number in ASCII digits. Raises Problem."""
    if re.fullmatch(r"[0-9]{1,16}", text) is None or not least <= int(text) <= most:
        raise Problem("invalid", f"{name} is a whole number from {least} to {most}.")
    return int(text)
