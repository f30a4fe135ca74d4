"""From an allowed host name to a connection: resolved once, checked, connected to the checked address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from services.common.addresses import address_problem, is_own_address
from services.sandbox_manager.egress.heads import BadRequest

RESOLVE_LIMIT_S: Final = 10.0
CONNECT_LIMIT_S: Final = 10.0
"""For all addresses of a name together."""
ONE_ADDRESS_LIMIT_S: Final = 4.0
MOST_ADDRESSES: Final = 8
"""Of one name; more are not tried."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host name. Raises OSError."""
Connect = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to an address. Raises OSError."""
IsOwn = Callable[[str], bool]
"""Whether an address is one of this machine."""


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Addresses as the system's resolver has them, in its order. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def connect_by_system(address: str, port: int) -> socket.socket:
    """A connected socket that doesn't block. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return made


class Dialer:
    """Makes connections for proxies. What it is made of can be replaced in tests."""

    def __init__(
        self,
        resolve: Resolve = resolve_by_system,
        connect: Connect = connect_by_system,
        is_own: IsOwn = is_own_address,
    ) -> None:
        self._resolve = resolve
        self._connect = connect
        self._is_own = is_own

    async def dial(self, host: str, port: int) -> socket.socket:
        """A connection to the first address that is allowed and answers. Raises BadRequest."""
        addresses = await self._addresses(host, port)
        allowed = [address for address in addresses if self._allowed(address)]
        if not allowed:
            raise BadRequest(403, f"{host} has no address on the public Internet.")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_LIMIT_S):
                for address in allowed[:MOST_ADDRESSES]:
                    with contextlib.suppress(OSError):  # also the TimeoutError of one address
                        async with asyncio.timeout(ONE_ADDRESS_LIMIT_S):
                            return await self._connect(address, port)
        raise BadRequest(502, f"{host} can't be reached.")

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            async with asyncio.timeout(RESOLVE_LIMIT_S):
                return await self._resolve(host, port)
        except (OSError, UnicodeError):  # a TimeoutError is an OSError
            raise BadRequest(502, f"{host} can't be resolved.") from None

    def _allowed(self, address: str) -> bool:
        return address_problem(address) is None and not self._is_own(address)
