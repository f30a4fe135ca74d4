"""What a session's preparation holds of the pool while it lasts."""

from __future__ import annotations

from typing import Protocol

from services.mcp_pool.connection import Connection
from services.mcp_pool.entries import Entry
from services.mcp_pool.session import PoolKey


class Pool(Protocol):
    """What a preparation asks of the pool. What is taken is released once."""

    def take_live(self, key: PoolKey) -> Entry | None:
        """The live connection of a key, used from now on."""
        ...

    def put(self, key: PoolKey, connection: Connection) -> Entry | None:
        """Takes a connection in, if there is none; what is in the pool now."""
        ...

    def take(self, entry: Entry) -> None:
        """Uses an entry."""
        ...

    def release(self, entry: Entry) -> None:
        """Uses it no more."""
        ...


class Preparation:
    """Keeps what a session's preparation opened or found from being closed for another server of it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._held: list[Entry] = []
        self._over = False

    def touch(self, key: PoolKey) -> Entry | None:
        """Marks a live connection as used; None when there is none."""
        entry = self._pool.take_live(key)
        if entry is not None:
            self._keep(entry)
        return entry

    def put(self, key: PoolKey, connection: Connection) -> Entry | None:
        """See Pool.put. What comes after the end is pooled all the same."""
        entry = self._pool.put(key, connection)
        if entry is not None:
            self._pool.take(entry)
            self._keep(entry)
        return entry

    def _keep(self, entry: Entry) -> None:
        if self._over:
            self._pool.release(entry)
        else:
            self._held.append(entry)

    def end(self) -> None:
        """Gives all back."""
        self._over = True
        held, self._held = self._held, []
        for entry in held:
            self._pool.release(entry)
