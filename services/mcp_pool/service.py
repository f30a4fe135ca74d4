"""The gRPC face of the MCP pool: it checks, forwards, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2, common_pb2, mcp_pool_pb2, mcp_pool_pb2_grpc

from protocol.jsjson import JsonError, JsonValue, Parsed, dumps, loads
from services.common.calls import WorkKey, fingerprint_of
from services.common.effect_run import EffectAborted, EffectRaised, EffectRun
from services.common.effect_stream import EffectStreams, Prepared, Replies, StreamTimings
from services.common.errors import invalid, unavailable
from services.common.metadata import ACCEPTED, LIMIT_MS, RUN_TOKEN, find
from services.common.work import WorkBook
from services.mcp_pool.declarations import DeclaredServer, ServerName
from services.mcp_pool.executor import (
    ArgumentsInvalid,
    CallRefused,
    McpExecutor,
    ToolCallWork,
    read_arguments,
    read_json,
)
from services.mcp_pool.remote_calls import RemoteCalls
from services.mcp_pool.session import Session

_MAX_ID: Final = 512
KEPT_DECLARATIONS: Final = 256
"""Declarations that are kept as they were read; the least recently used goes first."""
_KEPT_DECLARATION_CHARACTERS: Final = 4096
"""Longer declarations are read anew each time."""
_Reply = mcp_pool_pb2.ToolCallReply
_Result = mcp_pool_pb2.ToolCallResult

_REPLIES: Final = Replies(
    queued=lambda queued: _Reply(queued=queued),
    accepted=lambda accepted: _Reply(accepted=accepted),
    aborted=lambda aborted: _Reply(result=_Result(aborted=aborted)),
    raised=lambda raised: _Reply(result=_Result(raised=raised)),
)


class McpPoolService(mcp_pool_pb2_grpc.McpPoolServicer):
    """`whippletree.v1.McpPool` over one executor."""

    full_name = "whippletree.v1.McpPool"
    service = "mcp-pool"

    def __init__(self, executor: McpExecutor, timings: StreamTimings | None = None) -> None:
        self._executor = executor
        self._work = WorkBook()
        self._calls: EffectStreams[_Reply] = EffectStreams(_REPLIES, self._work, timings=timings)
        self._remote = RemoteCalls(executor, self._work)
        self._draining = False
        executor.tools_changed.listener = lambda count: self._work.count("mcp_tools_changed", count)

    @property
    def work(self) -> WorkBook:
        """Everything in flight."""
        return self._work

    def register(self, server: grpc.aio.Server) -> None:
        """Adds its handlers."""
        mcp_pool_pb2_grpc.add_McpPoolServicer_to_server(self, server)

    def facts(self) -> Mapping[str, str]:
        """What is open, and whether servers' tools are others than sessions were given."""
        changed = self._executor.tools_changed
        facts = {
            "connections": str(self._executor.pool.connections),
            "children": str(self._executor.children),
            "tools_changed": str(changed.count),
        }
        return facts | {"tools_changed_last": changed.last} if changed.count else facts

    @property
    def close_s(self) -> float:
        """Closing a server that ignores everything but SIGKILL (mcp-pool 3)."""
        return self._executor.close_s

    def in_flight(self) -> Sequence[admin_pb2.CallInFlight]:
        """Work in flight."""
        return self._work.in_flight()

    async def stop_taking(self) -> None:
        """Refuses new work."""
        self._draining = True
        self._calls.stop_taking()

    async def close(self) -> None:
        """Ends what runs and closes all connections."""
        await self._calls.close(grace_s=0)
        await self._executor.close()

    async def Discover(
        self, request: mcp_pool_pb2.DiscoverRequest, context: Any
    ) -> mcp_pool_pb2.DiscoverReply:
        """Opens and lists all servers of a manifest."""
        session = self._session(request.tenant_id, request.session_id)
        self._refuse_when_draining()
        self._executor.grants.offer(session, find(context.invocation_metadata(), RUN_TOKEN), request.epoch)
        manifest = await _document(request.root_manifest.text, "root_manifest")
        work = self._work.begin("discover", session.session_id, phase="running")
        try:
            found = await self._executor.discover(
                session, manifest, request.manifest_hash, dict(request.plugin_roots)
            )
        finally:
            work.end()
        return mcp_pool_pb2.DiscoverReply(
            snapshot=common_pb2.Json(text=found.snapshot),
            diagnostics=common_pb2.Json(text=found.diagnostics),
        )

    async def Reconnect(
        self, request: mcp_pool_pb2.ReconnectRequest, context: Any
    ) -> mcp_pool_pb2.ReconnectReply:
        """Opens the servers of a snapshot."""
        session = self._session(request.tenant_id, request.session_id)
        self._refuse_when_draining()
        self._executor.grants.offer(session, find(context.invocation_metadata(), RUN_TOKEN), request.epoch)
        snapshot = await _document(request.snapshot.text, "snapshot")
        declared = [await _declared(server) for server in request.servers]
        work = self._work.begin("reconnect", session.session_id, phase="running")
        try:
            diagnostics = await self._executor.reconnect(
                session, snapshot.value, declared, hash(request.snapshot.text)
            )
        finally:
            work.end()
        return mcp_pool_pb2.ReconnectReply(diagnostics=common_pb2.Json(text=dumps(diagnostics)))

    async def Call(self, request: Any, context: Any) -> None:  # type: ignore[override]
        """Calls a tool of a stdio server."""
        await self._calls.serve(context, self._prepare)

    async def CallRemote(self, request: mcp_pool_pb2.ToolCall, context: Any) -> mcp_pool_pb2.ToolCallResult:
        """Calls a tool of a remote server."""
        self._refuse_when_draining()
        key = self._effect_key(request.effect)
        work = await self._work_of(key, request)
        if work.server.is_stdio:
            raise invalid("CallRemote is for remote servers; a stdio server's tool is called by Call.")
        self._keep_token(request.effect, context)
        limit_ms = str(self._executor.limit_ms(work.server))
        await context.send_initial_metadata(((ACCEPTED, "1"), (LIMIT_MS, limit_ms)))
        try:
            return _Result(outcome=common_pb2.Json(text=await self._remote.call(key, work)))
        except CallRefused as refused:
            raise unavailable(str(refused)) from None
        except EffectRaised as error:
            return _Result(raised=common_pb2.Raised(message=str(error)))
        except EffectAborted as aborted:
            return _Result(aborted=common_pb2.Aborted(kind=aborted.kind))  # type: ignore[arg-type]

    async def Cancel(self, request: common_pb2.CancelRequest, context: Any) -> common_pb2.CancelReply:
        """Stops a call by its effect id."""
        key = self._effect_key(request.effect)
        state = self._calls.cancel(key, request.kind)
        if state == common_pb2.CancelReply.STATE_NOT_HERE:
            self._keep_token(request.effect, context)
            if await self._remote.stop(key, request.kind):
                state = common_pb2.CancelReply.STATE_STOPPING
        return common_pb2.CancelReply(state=state)

    async def PutGrant(
        self, request: mcp_pool_pb2.PutGrantRequest, context: Any
    ) -> mcp_pool_pb2.PutGrantReply:
        """Keeps a session's newest run token."""
        session = self._session(request.tenant_id, request.session_id)
        token = find(context.invocation_metadata(), RUN_TOKEN)
        kept = self._executor.grants.put(session, request.epoch, token, request.expires_at)
        return mcp_pool_pb2.PutGrantReply(kept=kept)

    async def CloseSession(
        self, request: mcp_pool_pb2.CloseSessionRequest, context: Any
    ) -> mcp_pool_pb2.CloseSessionReply:
        """Closes a session's connections."""
        session = self._session(request.tenant_id, request.session_id)
        return mcp_pool_pb2.CloseSessionReply(closed=await self._executor.close_session(session))

    # -- reading requests

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise unavailable("This mcp-pool is draining.")

    def _session(self, tenant_id: str, session_id: str) -> Session:
        _check_ids((("tenant_id", tenant_id), ("session_id", session_id)))
        return Session(tenant_id, session_id)

    def _effect_key(self, effect: common_pb2.EffectRef) -> WorkKey:
        _check_ids(
            (
                ("effect.tenant_id", effect.tenant_id),
                ("effect.session_id", effect.session_id),
                ("effect.effect_id", effect.effect_id),
            )
        )
        return WorkKey(effect.tenant_id, effect.session_id, effect.effect_id)

    def _keep_token(self, effect: common_pb2.EffectRef, context: Any) -> None:
        token = find(context.invocation_metadata(), RUN_TOKEN)
        self._executor.grants.put(Session(effect.tenant_id, effect.session_id), effect.epoch, token, "")

    async def _work_of(self, key: WorkKey, call: mcp_pool_pb2.ToolCall) -> ToolCallWork:
        server = await _declared(call.server)
        if not call.server_tool_name:
            raise invalid("server_tool_name is missing.")
        try:
            arguments = await read_arguments(call.arguments.text)
        except ArgumentsInvalid:
            raise invalid("arguments is not a JSON document.") from None
        session = Session(key.tenant_id, key.session_id)
        return ToolCallWork(session, key.effect_id, server, call.server_tool_name, arguments)

    def _prepare(self, call: mcp_pool_pb2.ToolCall) -> Prepared[_Reply]:
        key = self._effect_key(call.effect)
        if not call.server_tool_name:
            raise invalid("server_tool_name is missing.")

        async def perform(run: EffectRun[_Reply]) -> _Reply:
            work = await self._work_of(key, call)
            if not work.server.is_stdio:
                raise invalid("Call is for stdio servers; a remote server's tool is called by CallRemote.")
            try:
                async with self._executor.admitted(work, run.abort, run.queued) as admitted:
                    await run.accept(self._executor.limit_ms(work.server))
                    outcome = await admitted.perform()
            except CallRefused as refused:
                raise unavailable(str(refused)) from None
            reply = _Reply()
            reply.result.outcome.text = outcome  # in place: a message given to a constructor is copied
            return reply

        return Prepared(
            kind="mcp",
            session_id=key.session_id,
            key=key,
            fingerprint=_fingerprint(call),
            perform=perform,
            epoch=call.effect.epoch,
        )


def _fingerprint(call: mcp_pool_pb2.ToolCall) -> int:
    server = call.server
    agent_id = server.agent_id if server.HasField("agent_id") else None
    return fingerprint_of(
        agent_id, server.capability_id, server.server_name, call.server_tool_name, call.arguments.text
    )


def _check_ids(ids: Iterable[tuple[str, str]]) -> None:
    for name, value in ids:
        if not value or len(value) > _MAX_ID:
            raise invalid(f"{name} must have 1 to {_MAX_ID} characters.")


async def _document(text: str, name: str) -> Parsed:
    try:
        return await read_json(text)
    except ArgumentsInvalid:
        raise invalid(f"{name} is not a JSON document.") from None


async def _declared(server: mcp_pool_pb2.ServerDeclaration) -> DeclaredServer:
    text = server.declaration.text
    if len(text) <= _KEPT_DECLARATION_CHARACTERS:
        try:
            declaration = _read_declaration(text)
        except JsonError:
            raise invalid("server.declaration is not a JSON document.") from None
    else:
        declaration = (await _document(text, "server.declaration")).value
    if not isinstance(declaration, dict) or not server.capability_id or not server.server_name:
        raise invalid("server needs capability_id, server_name and a declaration that is an object.")
    return DeclaredServer(
        ServerName(
            server.agent_id if server.HasField("agent_id") else None, server.capability_id, server.server_name
        ),
        declaration,
        server.plugin_root if server.HasField("plugin_root") else None,
    )


@lru_cache(maxsize=KEPT_DECLARATIONS)
def _read_declaration(text: str) -> JsonValue:
    """A declaration comes with every call of its server, and nobody changes what was read of it."""
    return loads(text)
