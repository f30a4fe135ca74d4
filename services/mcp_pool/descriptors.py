"""Are there enough file descriptors for all connections that may be open?"""

from __future__ import annotations

import resource
from typing import Final

from services.common.logs import get_logger

PER_CONNECTION: Final = 4
"""A stdio server has two pipes and a pidfd; the fourth is for everything else of the process."""


def provide_descriptors(connections: int) -> bool:
    """Raises the soft limit of open files to 4 for each connection; False when that isn't possible.

    The hard limit is never touched. Says in the log what was done, or why not.
    """
    needed = connections * PER_CONNECTION
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    problem = None if allowed >= needed else f"the hard limit is {hard}"
    if allowed > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError) as error:
            allowed, problem = soft, str(error)
    if problem is None:
        get_logger().info("mcp_descriptors_raised", before=soft, now=allowed)
        return True
    get_logger().warning(
        "mcp_descriptors_low",
        needed=needed,
        now=allowed,
        error=f"{connections} connections need {needed} open files, but {problem}: raise it "
        "(ulimit -n, LimitNOFILE, ulimits.nofile) or lower WHIPPLETREE_MCP_MAX_CONNECTIONS.",
    )
    return False
