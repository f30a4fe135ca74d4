"""Core's own requests to a harness that has workspaces (harness-api 4).

A workspace event is only taken while a request that may cause it is in flight: `request_on` keeps that rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from protocol.errors import HarnessApiError
from services.dev_core.harness.connection import Connection

_OF_ANY_SESSION: Final = frozenset({"workspace.report", "workspace.sweep", "workspace.remove"})


class Workspaces:
    """Asks the first attached harness that declared workspaces."""

    def __init__(self, connections: Mapping[str, Connection]) -> None:
        self._connections = connections

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """The result as the method has it. Raises HarnessApiError: `unavailable` without such a harness."""
        return await request_on(self._choose(), method, params)

    def _choose(self) -> Connection:
        for connection in self._connections.values():
            if connection.said_hello and connection.workspace and not connection.closed:
                return connection
        raise HarnessApiError("unavailable", "No harness with workspaces is connected")


async def request_on(connection: Connection, method: str, params: dict[str, Any]) -> Any:
    """Asks one harness. Raises HarnessApiError."""
    with _claims(connection, method, params):
        return await connection.channel.request(method, params)


def session_reference(session_id: str, turn_id: str | None) -> dict[str, Any]:
    """How a workspace request names a session."""
    return {"ownerId": session_id, "activeTurnId": turn_id}


@contextmanager
def _claims(connection: Connection, method: str, params: dict[str, Any]) -> Iterator[None]:
    if method in _OF_ANY_SESSION:
        connection.open_claims += 1
        try:
            yield
        finally:
            connection.open_claims -= 1
        return
    session_id = params["session"]["ownerId"]
    connection.claims[session_id] += 1
    try:
        yield
    finally:
        connection.claims[session_id] -= 1
        if not connection.claims[session_id]:
            del connection.claims[session_id]
