"""The MCP pool as a plain object: what the gRPC service forwards to, and what can be used in process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonError, JsonValue, Parsed, RawJson, dumps, parse
from protocol.utf16 import utf16_truncate
from services.common.effect_run import EffectAborted, EffectRaised
from services.common.logs import get_logger
from services.mcp_pool.aborts import stopping
from services.mcp_pool.connection import Abort, ToolAnswer, ToolRequest
from services.mcp_pool.connector import ServerConnector
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.diagnostics import Diagnostic
from services.mcp_pool.discovery import Discovered, Discovery
from services.mcp_pool.failures import McpFailure, RequestAborted
from services.mcp_pool.grants import Grants
from services.mcp_pool.limits import ERROR_UNITS, PARSE_OFF_LOOP_BYTES, Limits
from services.mcp_pool.outcomes import outcome_of
from services.mcp_pool.pool import ConnectionPool
from services.mcp_pool.session import Session

__all__ = ["ArgumentsInvalid", "McpExecutor", "ToolCallWork", "read_arguments", "read_json"]

_NO_ARGUMENTS: Final = RawJson("{}")


class ArgumentsInvalid(ValueError):
    """A document of a request is not JSON."""


@dataclass(frozen=True, slots=True)
class ToolCallWork:
    """One tool call. `arguments` is a JSON object on one line (see read_arguments)."""

    session: Session
    effect_id: str
    server: DeclaredServer
    tool_name: str
    arguments: RawJson


async def read_json(text: str) -> Parsed:
    """Parses a document, a large one off the loop. Raises ArgumentsInvalid."""
    try:
        if len(text) > PARSE_OFF_LOOP_BYTES:
            return await asyncio.to_thread(parse, text)
        return parse(text)
    except JsonError:
        raise ArgumentsInvalid("not a JSON document") from None


async def read_arguments(text: str) -> RawJson:
    """A tool call's arguments from an effect's input: an object as it is, `{}` for everything else.

    Raises ArgumentsInvalid when the input is not JSON.
    """
    try:
        if len(text) > PARSE_OFF_LOOP_BYTES:
            return await asyncio.to_thread(_arguments, text)
        return _arguments(text)
    except JsonError:
        raise ArgumentsInvalid("not a JSON document") from None


def _arguments(text: str) -> RawJson:
    parsed = parse(text)
    if not isinstance(parsed.value, dict):
        return _NO_ARGUMENTS
    return RawJson(dumps(parsed.value, plain=parsed.plain))


class McpExecutor:
    """Discovers, reconnects and calls. Used on one loop; `close` is called at the end."""

    def __init__(self, connector: ServerConnector, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.pool = ConnectionPool(connector, self.limits)
        self.grants = Grants()
        self._connector = connector
        self._discovery = Discovery(self.pool, self.limits)

    def start(self) -> None:
        """Begins to close idle connections."""
        self.pool.start_sweeping()

    async def discover(
        self, session: Session, manifest: Parsed, manifest_hash: str, plugin_roots: dict[str, str]
    ) -> Discovered:
        """See Discovery.discover."""
        return await self._discovery.discover(session, manifest, manifest_hash, plugin_roots)

    async def reconnect(
        self, session: Session, snapshot: JsonValue, declared: Sequence[DeclaredServer]
    ) -> list[Diagnostic]:
        """See Discovery.reconnect."""
        return await self._discovery.reconnect(session, snapshot, declared)

    async def call(self, work: ToolCallWork, abort: Abort) -> str:
        """Calls a tool and gives the outcome document's text (mcp-pool 8).

        Raises EffectAborted for the aborts that end a call (aborts.stopping), and EffectRaised when there is
        no outcome. Nothing is sent for a call that was aborted before. Ends within `limits.call_ms()`.
        """
        if abort.kind in stopping(work.server) and abort.kind is not None:
            raise EffectAborted(abort.kind)
        try:
            async with asyncio.timeout(self.limits.call_ms() / 1000):
                key = work.session.key(work.server.name)
                async with self.pool.lease(key, work.server, abort) as connection:
                    request = ToolRequest(work.effect_id, work.tool_name, work.arguments)
                    answer = await connection.call_tool(request, abort)
        except RequestAborted as aborted:
            raise EffectAborted(aborted.kind) from None
        except McpFailure as failure:
            get_logger().warning(
                "mcp_call_failed",
                sessionId=work.session.session_id,
                effectId=work.effect_id,
                server=work.server.name.server_name,
                failure=type(failure).__name__,
            )
            raise EffectRaised(utf16_truncate(failure.message, ERROR_UNITS)) from None
        except TimeoutError:
            raise EffectRaised("The call of the MCP tool took longer than its limit.") from None
        if answer.size > PARSE_OFF_LOOP_BYTES:
            return await asyncio.to_thread(_outcome_text, answer)
        return _outcome_text(answer)

    def remote_refusal(self) -> str:
        """Why a call of a remote server's tool has no outcome."""
        return self._connector.remote_refusal()

    async def close_session(self, session: Session) -> int:
        """Closes a session's connections, after their calls; returns how many there were."""
        return await self.pool.close_session(session.tenant_id, session.session_id)

    async def close(self) -> None:
        """Closes all connections; calls in flight fail."""
        await self.pool.close()


def _outcome_text(answer: ToolAnswer) -> str:
    return dumps(outcome_of(answer.result), plain=answer.plain)
