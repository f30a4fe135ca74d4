"""Which addresses what people or models name may reach, whatever name they have (sandbox-manager 16.3.7).

Only addresses of the public Internet are left: neither this machine, nor its networks, nor what clouds put
beside a machine, in any of the forms in which IPv6 can carry an IPv4 address.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_REFUSED_4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' own; metadata of some clouds
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host: public by number only
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_6: Final = ipaddress.IPv6Network("2000::/3")
"""All that was ever given out for the public Internet."""
_REFUSED_6: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4: carries an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""NAT64: what networks without IPv4 turn every IPv4 address into."""


def address_problem(text: str) -> str | None:
    """Why an address as a resolver gives it is refused; None when it may be connected to."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "it is no address"
    return None if is_public(address) else "it is not on the public Internet"


def is_public(address: Address) -> bool:
    """The address is on the public Internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED_4)
    if address.scope_id is not None:
        return False
    if address in _TRANSLATED:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _REFUSED_6)


def is_own_address(address: str) -> bool:
    """Whether a public address is this machine's: then it is no way out but one to the machine's own ports."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as tried:
        try:
            tried.bind((address, 0))
        except OSError:
            return False
    return True
