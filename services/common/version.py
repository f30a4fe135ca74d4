"""Which Whippletree this is."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Final

API_MAJOR: Final = 1
"""Major version of the gRPC contract; a gateway refuses a service with another one."""


@functools.cache
def version() -> str:
    """The installed version, for instance `0.1.0`; `0.0.0` when it runs from a bare folder."""
    try:
        return metadata.version("whippletree")
    except metadata.PackageNotFoundError:
        return "0.0.0"
