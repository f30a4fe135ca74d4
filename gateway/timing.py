"""The intervals and limits of the gateway, in one place so that tests can shorten them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    open_timeout: float = 10.0
    """A dial, from DNS to the answered upgrade (harness-api 1.1)."""
    backoff_min: float = 0.5
    backoff_max: float = 10.0
    """Bounds of the wait before another dial (1.5)."""
    ping: float = 30.0
    silence: float = 90.0
    """How often a connection is looked at, and after how much silence it is dropped (1.4)."""
    close_handshake: float = 5.0
    """How long a closed connection may wait for the peer's close frame before its TCP end is cut."""
    assumed_renewal: float = 10.0
    """The renewal interval before core named one (5.1)."""
    lease_retry: float = 0.1
    """The pause after a refused lease (5.1)."""
    wind_down: float = 5.0
    """How long runs may take to end after a lost connection before the backoff starts (5.4)."""
    services_grace: float = 10.0
    """How long a service may be gone before no more work is asked for (operations 12.10)."""
    services_log: float = 10.0
    """How often it is said that services are waited for."""
    leftovers: float = 2.0
    """How long cancelled tasks may take to end when the process stops."""
