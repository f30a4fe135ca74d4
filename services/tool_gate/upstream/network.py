"""Where the gate may connect to: only addresses of the public Internet, by name, on ports 80 and 443, unless the
configuration allows a server to be private (sandbox-manager 16.3.7).

A name is resolved once for a connection, and the connection goes to an address that was checked: what a name
means a moment later does not matter.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import httpcore2

from services.common.addresses import address_problem, is_own_address
from services.common.urls import UrlParts, parse_url
from services.tool_gate.failures import Unreachable

RESOLVE_S: Final = 10.0
CONNECT_S: Final = 10.0
"""For one address."""
MOST_ADDRESSES: Final = 8
"""Of one name; more are not tried."""
_PORTS: Final = {"http": 80, "https": 443}
_KEEP_ALIVE_S: Final = 30

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host name. Raises OSError."""


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Addresses as the system's resolver has them, in its order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def check_endpoint(url: str, *, allow_private: bool) -> UrlParts:
    """The parts of a server's URL. Raises Unreachable when the gate does not go there."""
    parts = parse_url(url)
    if parts is None or parts.scheme not in _PORTS:
        raise Unreachable("The MCP server's url is not an http or https URL.")
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise Unreachable(
            "The MCP server's url holds a user name: put credentials into the Tool Gate's configuration."
        )
    if allow_private:
        return parts
    if _is_address(parts.host):
        raise Unreachable(f"The Tool Gate reaches servers by name, and {parts.host} is an address{_ALLOW}.")
    if parts.port not in (None, 80, 443):
        raise Unreachable(f"The Tool Gate reaches ports 80 and 443, not {parts.port}{_ALLOW}.")
    return parts


_ALLOW: Final = "; allow_private in its configuration allows it"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses only. Raises Unreachable where it does not, or can't."""

    def __init__(
        self,
        *,
        allow_private: bool,
        resolve: Resolve = resolve_by_system,
        is_own: Callable[[str], bool] = is_own_address,
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._is_own = is_own
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first address that is allowed and answers."""
        bound = CONNECT_S if timeout is None else min(timeout, CONNECT_S)
        for address in await self._addresses(host, port):
            try:
                return await self._inner.connect_tcp(
                    address, port, bound, local_address, [*(socket_options or ()), *_KEEP_ALIVE]
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        raise Unreachable(f"{host} does not answer on port {port}.")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """No server is reached so."""
        raise Unreachable("The Tool Gate reaches no Unix sockets.")

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await self._inner.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await self._resolve(host, port)
        except (OSError, UnicodeError):  # a TimeoutError is an OSError
            raise Unreachable(f"{host} can't be resolved.") from None
        allowed = [address for address in found if self._allow_private or self._public(address)]
        if not allowed:
            raise Unreachable(f"{host} has no address on the public Internet{_ALLOW}.")
        return allowed[:MOST_ADDRESSES]

    def _public(self, address: str) -> bool:
        return address_problem(address) is None and not self._is_own(address)


_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S),) if hasattr(socket, "TCP_KEEPIDLE") else ()),
)
