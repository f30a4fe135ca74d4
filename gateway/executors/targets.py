"""What a target names: a fixed list of addresses, or a DNS name that is asked again and again.

gRPC resolves no list of host names and asks DNS only when a connection ends, so names are resolved here:
each address gets a channel of its own (design, section 1).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass


class TargetInvalid(ValueError):
    """The text is no target."""


@dataclass(frozen=True, slots=True)
class FixedAddresses:
    """Addresses that stay: gRPC targets of one address each."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DnsName:
    """A name whose address records are the replicas."""

    host: str
    port: int


def read_target(target: str) -> FixedAddresses | DnsName:
    """Reads `host:port`, `dns:///host:port`, `unix:/path`, or `ipv4:a:p,b:p` and `ipv6:[a]:p,…`.

    Raises TargetInvalid.
    """
    if target.startswith("unix:"):
        return FixedAddresses((target,))
    for scheme in ("ipv4:", "ipv6:"):
        if target.startswith(scheme):
            parts = [part.strip() for part in target[len(scheme) :].split(",")]
            return FixedAddresses(tuple(f"{scheme}{part}" for part in dict.fromkeys(parts) if part))
    host, port = _host_port(target.removeprefix("dns:").removeprefix("///"))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return DnsName(host, port)
    return FixedAddresses((_literal(address, port),))


async def resolve(name: DnsName) -> tuple[str, ...]:
    """The addresses that a name has now, sorted. Raises OSError when DNS has no answer."""
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        # Python itself refuses an empty label, or one of more than 63 characters.
        raise OSError("the name is not one that DNS can have") from None
    found = {_literal(ipaddress.ip_address(str(info[4][0]).partition("%")[0]), name.port) for info in infos}
    v4 = {address for address in found if address.startswith("ipv4:")}
    # A host with records of both families is one replica: the first family stands for it.
    return tuple(sorted(v4 or found))


def _literal(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    return f"ipv4:{address}:{port}" if address.version == 4 else f"ipv6:[{address}]:{port}"


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535:
        raise TargetInvalid(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
