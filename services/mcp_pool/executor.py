"""The MCP pool as a plain object: what the gRPC service forwards to, and what can be used in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonError, JsonValue, Parsed, RawJson, dumps, parse
from protocol.utf16 import utf16_truncate
from services.common.effect_run import EffectAborted, EffectRaised
from services.common.logs import get_logger
from services.mcp_pool.aborts import stopping
from services.mcp_pool.connection import Abort, OwnedConnector, ToolAnswer, ToolRequest
from services.mcp_pool.declarations import DeclaredServer
from services.mcp_pool.diagnostics import Diagnostic
from services.mcp_pool.discovery import Discovered, Discovery
from services.mcp_pool.failures import McpFailure, OverLimit, RequestAborted
from services.mcp_pool.gate.client import GateClient
from services.mcp_pool.gate.wire import CodedFailure
from services.mcp_pool.grants import Grants
from services.mcp_pool.lease import Lease
from services.mcp_pool.limits import ERROR_UNITS, PARSE_OFF_LOOP_BYTES, Limits
from services.mcp_pool.outcomes import outcome_of
from services.mcp_pool.pool import ConnectionPool
from services.mcp_pool.session import Session
from services.mcp_pool.tools_watch import ToolsChanged, ToolsWatch
from services.mcp_pool.turns import CallTurns, Waiting

__all__ = [
    "ArgumentsInvalid",
    "CallRefused",
    "McpExecutor",
    "ToolCallWork",
    "read_arguments",
    "read_json",
]

_NO_ARGUMENTS: Final = RawJson("{}")


class ArgumentsInvalid(ValueError):
    """A document of a request is not JSON."""


class CallRefused(Exception):
    """A limit is reached: nothing was started, the call may be made again. The text names the setting."""


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


class AdmittedCall:
    """A call that may start."""

    def __init__(self, work: ToolCallWork, lease: Lease, abort: Abort, limit_ms: int) -> None:
        self._work = work
        self._lease = lease
        self._abort = abort
        self._limit_ms = limit_ms

    async def perform(self) -> str:
        """Calls the tool and gives the outcome document's text (mcp-pool 8).

        Raises EffectAborted for the aborts that end a call, and EffectRaised when there is no outcome. Ends
        within the call's limit.
        """
        work = self._work
        try:
            with _as_effect(work):
                async with asyncio.timeout(self._limit_ms / 1000):
                    connection = await self._lease.connection()
                    request = ToolRequest(work.effect_id, work.tool_name, work.arguments)
                    try:
                        answer = await connection.call_tool(request, self._abort)
                    except CodedFailure as failure:
                        return dumps(failure.outcome)
        except CallRefused as refused:
            # The connection ended between the start and its use, and its place is taken.
            raise EffectRaised(str(refused)) from None
        except TimeoutError:
            raise EffectRaised("The call of the MCP tool took longer than its limit.") from None
        if answer.size > PARSE_OFF_LOOP_BYTES:
            return await asyncio.to_thread(_outcome_text, answer)
        return _outcome_text(answer)


@contextmanager
def _as_effect(work: ToolCallWork) -> Iterator[None]:
    """What failures of a connection come to for an effect."""
    try:
        yield
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
        if isinstance(failure, OverLimit):
            raise CallRefused(failure.message) from None
        # The text crosses in a field that holds no lone surrogate; a server's message may.
        text = failure.message.encode("utf-8", "replace").decode()
        raise EffectRaised(utf16_truncate(text, ERROR_UNITS)) from None


class McpExecutor:
    """Discovers, reconnects and calls. Used on one loop; `close` is called at the end.

    `check_tools`: see Discovery. `gate` is where remote calls are cancelled, with the tokens of `grants`; the
    executor closes it and the connector.
    """

    def __init__(
        self,
        connector: OwnedConnector,
        limits: Limits | None = None,
        *,
        check_tools: bool = False,
        grants: Grants | None = None,
        gate: GateClient | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.pool = ConnectionPool(connector, self.limits)
        self.grants = Grants() if grants is None else grants
        self._turns = CallTurns(self.limits.calls)
        self._connector = connector
        self._gate = gate
        self._watch = ToolsWatch(self.limits, self.pool.in_background)
        self._discovery = Discovery(self.pool, self.limits, self._watch, check_tools)

    def start(self) -> None:
        """Begins to close idle connections."""
        self.pool.start_sweeping()

    async def discover(
        self, session: Session, manifest: Parsed, manifest_hash: str, plugin_roots: dict[str, str]
    ) -> Discovered:
        """See Discovery.discover."""
        return await self._discovery.discover(session, manifest, manifest_hash, plugin_roots)

    async def reconnect(
        self,
        session: Session,
        snapshot: JsonValue,
        declared: Sequence[DeclaredServer],
        snapshot_id: object = None,
    ) -> list[Diagnostic]:
        """See Discovery.reconnect."""
        return await self._discovery.reconnect(session, snapshot, declared, snapshot_id)

    @property
    def tools_changed(self) -> ToolsChanged:
        """Tools that are no longer what their session's snapshot says."""
        return self._watch.changed

    @property
    def children(self) -> int:
        """Stdio servers that were started and whose process groups are not known to be gone."""
        return self._connector.children

    def limit_ms(self, server: DeclaredServer) -> int:
        """The longest a call of a server's tool takes from its start, in milliseconds."""
        return self.limits.call_ms() if server.is_stdio else self.limits.remote_call_ms()

    async def call(self, work: ToolCallWork, abort: Abort) -> str:
        """Calls a tool and gives the outcome document's text: `admitted` and `perform` in one."""
        async with self.admitted(work, abort) as call:
            return await call.perform()

    @asynccontextmanager
    async def admitted(
        self, work: ToolCallWork, abort: Abort, waiting: Waiting | None = None
    ) -> AsyncIterator[AdmittedCall]:
        """A call whose turn has come, with a connection or a place for one; nothing was started for it.

        `waiting` hears the call's place while others run. Raises EffectAborted for the aborts that end a
        call (aborts.stopping), CallRefused when no connection may be opened, EffectRaised when none can be.
        """
        key, stops = work.session.key(work.server.name), stopping(work.server)
        if abort.kind is not None and abort.kind in stops:
            raise EffectAborted(abort.kind)
        async with AsyncExitStack() as stack:
            with _as_effect(work):
                await stack.enter_async_context(self._turns.turn(key, abort, stops, waiting))
                lease = await stack.enter_async_context(self.pool.lease(key, work.server, abort))
            yield AdmittedCall(work, lease, abort, self.limit_ms(work.server))

    @property
    def close_s(self) -> float:
        """What `close` takes at worst, in seconds."""
        return self.pool.close_s

    async def cancel_at_gate(self, session: Session, effect_id: str) -> None:
        """Has the gate stop a call, if there is a gate. Never fails; at most 2 s."""
        if self._gate is not None:
            await self._gate.cancel(session, effect_id)

    async def close_session(self, session: Session) -> int:
        """Closes a session's connections, after their calls; returns how many there were."""
        return await self.pool.close_session(session.tenant_id, session.session_id)

    async def close(self) -> None:
        """Closes all connections; calls in flight fail."""
        try:
            await self.pool.close()
        finally:
            await self._connector.close()
            if self._gate is not None:
                await self._gate.close()


def _outcome_text(answer: ToolAnswer) -> str:
    return dumps(outcome_of(answer.result), plain=answer.plain)
