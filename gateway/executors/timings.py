"""Every wait and limit of the executors' clients, in one place so that tests can scale them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorTimings:
    """Seconds."""

    resend_for: float = 10.0
    """Sending again stops so long after the first failure (design 3.3)."""
    resend_pauses: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
    """Waits between attempts; the last one repeats. A replica that comes back ends a wait early."""
    fault_resends: int = 2
    """How often a call is sent again after the service itself failed on it."""
    silence: float = 30.0
    """A call that was neither accepted nor called queued for so long is lost."""
    give_up: float = 15.0
    """After the executor's own limit."""
    assumed_limit: float = 900.0
    """The executor's limit where it named none."""
    quick_limit: float = 60.0
    """Up to this limit of the executor's, a unary call has one bound for all of it."""
    abort_answer: float = 10.0
    """From an in-band abort to the end of the call."""
    cancel: float = 3.0
    """Deadline of a Cancel."""
    keep_cancel: float = 60.0
    """How long the cancel of a remote MCP call is kept while no mcp-pool takes it."""
    grant: float = 2.0
    """Deadline of a PutGrant."""
    workspace: float = 60.0
    """Deadline of report and remove, and of a sweep without a word."""
    discover: float = 135.0
    """Deadline of discover and reconnect."""
    describe_every: float = 2.0
    describe: float = 2.0
    """How often each replica is asked what it is, and how long it may take."""
    describe_failures: int = 3
    """A replica that missed so many in a row takes no new calls."""
    resolve_every: float = 5.0
    """How often a DNS name's addresses are asked for."""
    certificates_every: float = 5.0
    """How often the certificate files are looked at."""
    certificates_end: float = 2_000.0
    """How long calls may go on over a channel with older certificates: longer than the longest call."""
    watch_pause: float = 0.05
    """Before another health watch."""
    watch_grace: float = 0.3
    """How long a replica whose watch ended still counts as serving."""
