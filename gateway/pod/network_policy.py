"""Waits until a new pod's network policy is in force (pod-mode 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.common.logs import get_logger

LIMIT_S: Final = 120.0
CONNECT_S: Final = 1.0
PAUSE_S: Final = 0.25
FAILURES_IN_A_ROW: Final = 3

Address = tuple[str, int]


class PolicyMissing(Exception):
    """An address that the policy must close still took connections at the deadline."""


async def await_network_policy(
    addresses: Sequence[Address], *, limit_s: float = LIMIT_S, pause_s: float = PAUSE_S
) -> int:
    """Returns after three failed connections in a row to each address, in order; gives the milliseconds
    waited. Raises PolicyMissing once `limit_s` is over, looked at before each attempt."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for host, port in addresses:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        failures = opened = 0
        while failures < FAILURES_IN_A_ROW:
            if loop.time() > began + limit_s:
                raise PolicyMissing(
                    f"The pod's NetworkPolicy is not in force after {limit_s:g} s: "
                    f"{shown} took {opened} connections."
                )
            if await _opens(host, port):
                failures = 0
                opened += 1
                await asyncio.sleep(pause_s)
            else:
                failures += 1
        get_logger().info("sandbox_network_policy_checked", address=shown, openedBefore=opened)
    return round((loop.time() - began) * 1000)


async def _opens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
