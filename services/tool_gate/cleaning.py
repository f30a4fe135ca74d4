"""Makes JSON values fit for a library that writes JSON by the letter (mcp-pool 10.4). Pure."""

from __future__ import annotations

import math
import re
from typing import Any, Final

_HALVES: Final = re.compile("[\ud800-\udfff]")
_UNKNOWN: Final = "\ufffd"


def as_json(value: Any) -> Any:
    """The value with halves of surrogate pairs replaced, and infinite numbers as null, as JavaScript writes them.

    The value itself is not changed.
    """
    if isinstance(value, str):
        return _HALVES.sub(_UNKNOWN, value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {as_json(name): as_json(item) for name, item in value.items()}
    return value
