"""What the gate asks its core: whether a session's lease lives, and which servers its manifest declares."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
from yarl import URL

from protocol.jsjson import JsonError, loads
from protocol.mcp_servers import ServerDeclared, servers_of
from services.common.gate_http import component
from services.common.logs import get_logger
from services.tool_gate.problems import unavailable

ASK_S: Final = 10.0
MANIFESTS: Final = 256
"""Whose servers are kept, the least recently used go first: a session's manifest never changes."""

ServerName = tuple[str | None, str, str]
Servers = Mapping[ServerName, ServerDeclared]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """`epoch` is the newest lease's; `live`: somebody holds it. `servers` by agent, capability and name."""

    epoch: int
    live: bool
    servers: Servers


class Sessions(Protocol):
    """What is known of sessions."""

    async def session(self, session_id: str) -> SessionFacts | None:
        """A session as it is now; None when there is none. Raises GateProblem when it can't be asked for."""
        ...


class CoreSessions:
    """Asks the development core's HTTP API. `token` is its bearer, where it wants one."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._servers: OrderedDict[str, Servers] = OrderedDict()

    async def session(self, session_id: str) -> SessionFacts | None:
        """See Sessions."""
        document = await self._get(f"/v1/sessions/{component(session_id)}")
        if document is None:
            return None
        epoch, hash_ = document.get("epoch"), document.get("manifestHash")
        if not isinstance(epoch, int) or not isinstance(hash_, str):
            raise _unusable("its description of a session has no epoch or no manifest")
        servers = await self._servers_of(hash_)
        return SessionFacts(epoch, document.get("status") == "running", servers)

    async def _servers_of(self, hash_: str) -> Servers:
        known = self._servers.get(hash_)
        if known is None:
            manifest = await self._get(f"/v1/manifests/{component(hash_)}")
            if manifest is None:
                raise _unusable("it has no manifest of a session")
            known = await asyncio.to_thread(declared, manifest)
            self._servers[hash_] = known
            while len(self._servers) > MANIFESTS:
                self._servers.popitem(last=False)
        self._servers.move_to_end(hash_)
        return known

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(ASK_S):
                async with self._http.get(
                    URL(self._url + path, encoded=True), headers=self._headers, allow_redirects=False
                ) as answer:
                    body = await answer.read()
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise _unusable(f"it does not answer ({type(error).__name__})") from None
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise _unusable(f"it answers with status {answer.status}")
        try:
            document = loads(body)
        except (JsonError, UnicodeDecodeError):
            document = None
        if not isinstance(document, dict):
            raise _unusable("its answer is not a document")
        return document


def declared(manifest: Mapping[str, Any]) -> Servers:
    """A manifest's servers; of equal names the first counts (mcp-pool 2.1)."""
    servers: dict[ServerName, ServerDeclared] = {}
    for server in servers_of(manifest):
        servers.setdefault((server.agent_id, server.capability_id, server.server_name), server)
    return servers


def _unusable(why: str) -> Exception:
    get_logger().warning("gate_core_unusable", reason=why)
    return unavailable(f"The core can't be asked about the session: {why}.")
