"""Which `Host` headers a listener answers to: its loopback names, and what was allowed by name."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether a listen address is reachable from this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class HostCheck:
    """Exact `name:port` headers, lower-cased; a name without a port stands for port 80."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = {name.strip().lower() for name in allowed if name.strip()}

    def add_loopback(self, port: int) -> None:
        """Answers to the loopback names with that port."""
        self._allowed |= {f"{name}:{port}" for name in _LOOPBACK_NAMES}
        if port == 80:
            self._allowed |= set(_LOOPBACK_NAMES)

    def allows(self, host: str | None) -> bool:
        """Whether a request with that `Host` header is meant for this listener."""
        return host is not None and host.strip().lower() in self._allowed
