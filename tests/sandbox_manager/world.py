"""A small Internet for tests: names, public addresses, and what answers behind all of them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.sandbox_manager.egress import dialer as dialing
from services.sandbox_manager.egress.dialer import Dialer

PUBLIC = "93.184.216.34"


@dataclass
class World:
    """Names, and what answers behind every public address. Notes who was asked for what."""

    names: dict[str, list[str]] = field(default_factory=dict)
    port: int = 0
    asked: list[str] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return self.names[host]

    async def connect(self, address: str, port: int) -> socket.socket:
        self.connected.append((address, port))
        if address in self.dead:
            raise ConnectionRefusedError
        return await dialing.connect_by_system("127.0.0.1", self.port)

    def dialer(self) -> Dialer:
        return Dialer(self.resolve, self.connect, lambda address: address in self.own)
