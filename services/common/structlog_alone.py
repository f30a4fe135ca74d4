"""Lets structlog be imported without `rich`, which it loads whenever it is installed.

`rich` draws tracebacks for people at a terminal. A process that writes JSON lines never uses it, and it costs each
of them a third of what they take to start and some megabytes. To be imported before structlog.
"""

from __future__ import annotations

import sys
from typing import Any, cast

_NAME = "rich"

if _NAME not in sys.modules and "structlog" not in sys.modules:
    # None stands for "not installed" for as long as structlog looks for it.
    cast("dict[str, Any]", sys.modules)[_NAME] = None
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules[_NAME]
