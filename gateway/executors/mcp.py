"""MCP tools and servers over gRPC (mcp-pool 5 to 8)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2, mcp_pool_pb2

from gateway.engine.contract import AbortKind, EffectRequest
from gateway.executors.call_metadata import plain_metadata, run_metadata
from gateway.executors.contract import AbortSignal, Discovery, ExecutionFailed, RunAborted, RunContext
from gateway.executors.effect_result import answer_of, failed_outcome
from gateway.executors.effects import SURROGATE_TEXT, effect_ref, fill_effect_ref
from gateway.executors.kept_cancels import KeptCancels
from gateway.executors.pins import pinned
from gateway.executors.replica import Replica
from gateway.executors.replica_set import ReplicaSet
from gateway.executors.resend import Resends
from gateway.executors.run_servers import servers_for
from gateway.executors.status import RESENT, CallFailed
from gateway.executors.stream_call import StreamCall, StreamMethod
from gateway.executors.timings import ExecutorTimings
from gateway.executors.unary_call import UnaryMethod, call_unary
from protocol.jsjson import JsonError, JsonValue, Parsed, dumps, dumps_bytes, loads
from services.common.json_text import set_json

FULL_NAME: Final = "whippletree.v1.McpPool"
SERVICE: Final = "mcp-pool"
TOO_LARGE: Final = "mcp.too-large"
MAX_SESSIONS: Final = 10_000
"""Sessions of which it is known where their connections live; the least recently used goes first."""

_CALL: Final = StreamMethod(f"/{FULL_NAME}/Call", mcp_pool_pb2.ToolCallRequest, mcp_pool_pb2.ToolCallReply)
_REMOTE: Final = UnaryMethod(f"/{FULL_NAME}/CallRemote", mcp_pool_pb2.ToolCall, mcp_pool_pb2.ToolCallResult)
_DISCOVER: Final = UnaryMethod(
    f"/{FULL_NAME}/Discover", mcp_pool_pb2.DiscoverRequest, mcp_pool_pb2.DiscoverReply
)
_RECONNECT: Final = UnaryMethod(
    f"/{FULL_NAME}/Reconnect", mcp_pool_pb2.ReconnectRequest, mcp_pool_pb2.ReconnectReply
)
_PUT_GRANT: Final = UnaryMethod(
    f"/{FULL_NAME}/PutGrant", mcp_pool_pb2.PutGrantRequest, mcp_pool_pb2.PutGrantReply
)
T = TypeVar("T")


class GrpcMcp:
    """A run's MCP servers and their tools. A run sticks to one replica: that is where its connections are."""

    def __init__(
        self,
        replicas: ReplicaSet,
        timings: ExecutorTimings,
        *,
        on_grant: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._replicas = replicas
        self._on_grant = on_grant
        self._timings = timings
        self._cancels = KeptCancels(replicas, timings)
        self._homes: OrderedDict[str, tuple[str, Replica]] = OrderedDict()

    # Preparing a run.

    async def discover(self, run: RunContext, manifest_hash: str, signal: AbortSignal) -> Discovery:
        """Opens and lists all servers of the root manifest. Raises RunAborted, ExecutionFailed."""
        try:
            request = mcp_pool_pb2.DiscoverRequest(
                tenant_id=run.tenant_id,
                session_id=run.session_id,
                root_manifest=common_pb2.Json(text=dumps(run.root_manifest)),
                manifest_hash=manifest_hash,
                plugin_roots=dict(run.plugin_roots),
                run_id=run.run_id,
                epoch=run.epoch,
            )
        except UnicodeEncodeError:
            raise ExecutionFailed(SURROGATE_TEXT) from None
        reply = await self._ask(_DISCOVER, request, run, signal)
        return Discovery(_read(reply.snapshot), _read_list(reply.diagnostics))

    async def reconnect(
        self, run: RunContext, snapshot: JsonValue, signal: AbortSignal
    ) -> Sequence[JsonValue]:
        """Opens the snapshot's servers; returns diagnostics. Raises RunAborted, ExecutionFailed."""
        servers = servers_for(run)
        try:
            request = mcp_pool_pb2.ReconnectRequest(
                tenant_id=run.tenant_id,
                session_id=run.session_id,
                snapshot=common_pb2.Json(text=dumps(snapshot)),
                servers=[servers.declaration(server) for server in servers.named_in(snapshot)],
                run_id=run.run_id,
                epoch=run.epoch,
            )
        except UnicodeEncodeError:
            raise ExecutionFailed(SURROGATE_TEXT) from None
        return _read_list((await self._ask(_RECONNECT, request, run, signal)).diagnostics)

    async def put_grant(self, session_id: str, epoch: int, token: str, expires_at: str | None) -> None:
        """Hands a renewed token to where the session's connections live, and to `on_grant`. Never fails."""
        if self._on_grant is not None:
            await self._on_grant(session_id, token)
        home = self._homes.get(session_id)
        if home is None:
            return
        tenant_id, replica = home
        request = mcp_pool_pb2.PutGrantRequest(
            tenant_id=tenant_id, session_id=session_id, epoch=epoch, expires_at=expires_at or ""
        )
        targets = [replica] if not replica.closed else self._replicas.replicas
        for target in targets:
            try:
                await _PUT_GRANT.on(target)(
                    request, metadata=plain_metadata(target, session_id, token), timeout=self._timings.grant
                )
            except (grpc.aio.AioRpcError, grpc.aio.UsageError):
                continue

    # Tools.

    def recovers(self, record: Mapping[str, JsonValue], run: RunContext) -> bool:
        """The tool's server is remote: its gate knows the call by the effect id."""
        server = servers_for(run).server(record)
        return server is not None and not server.is_stdio

    async def call(
        self,
        record: Mapping[str, JsonValue],
        effect: EffectRequest,
        run: RunContext,
        signal: AbortSignal,
        rejoin: bool,
    ) -> Parsed:
        """A tool's outcome. Raises RunAborted, ExecutionFailed."""
        servers = servers_for(run)
        server = servers.server(record)
        if server is None:
            raise ExecutionFailed(f"The MCP server {record.get('serverName')} is not declared by the agent.")
        first = mcp_pool_pb2.ToolCallRequest()
        request = first.request
        try:
            # In place: a message given to a constructor is copied.
            fill_effect_ref(request.effect, effect, run)
            request.server.CopyFrom(servers.declaration(server))
            request.server_tool_name = str(record.get("serverToolName"))
            set_json(request.arguments, dumps_bytes(effect.document.get("input"), plain=effect.plain))
            request.rejoin = rejoin
        except UnicodeEncodeError:
            raise ExecutionFailed(SURROGATE_TEXT) from None
        if server.is_stdio:
            return await self._call_local(first, run, signal)
        return await self._call_remote(request, run, signal)

    async def cancel(self, effect: EffectRequest, run: RunContext) -> None:
        """Asks the gate to stop a remote call, later when no replica takes it. Never fails; at most 3 s."""
        try:
            reference = effect_ref(effect, run)
        except UnicodeEncodeError:
            return
        await self._cancels.deliver(reference, run)

    async def close(self) -> None:
        """Gives up what is done in the background."""
        await self._cancels.close()

    async def _call_local(
        self, first: mcp_pool_pb2.ToolCallRequest, run: RunContext, signal: AbortSignal
    ) -> Parsed:
        """Work with effects of its own: sent again only while `start` was not."""
        _raise_if(signal, _stops_local)

        async def attempt(replica: Replica) -> mcp_pool_pb2.ToolCallResult:
            stream: StreamCall[mcp_pool_pb2.ToolCallResult] = StreamCall(
                _CALL,
                replica,
                run_metadata(replica, run),
                signal=signal,
                stops=_stops_local,
                timings=self._timings,
                service=SERVICE,
                handle=_result,
            )
            return await stream.run(first)

        try:
            return answer_of(await self._attempts(attempt, run, signal), signal)
        except CallFailed as failure:
            _raise_if(signal, _stops_local)
            return failed_outcome(failure, TOO_LARGE)

    async def _call_remote(
        self, request: mcp_pool_pb2.ToolCall, run: RunContext, signal: AbortSignal
    ) -> Parsed:
        """Keyed at the gate: sent again under the same id."""
        _raise_if(signal, _stops_remote)
        return answer_of(
            await self._unary(_REMOTE, request, run, signal, stops=_stops_remote, within_s=None), signal
        )

    async def _ask(self, method: UnaryMethod, request: Any, run: RunContext, signal: AbortSignal) -> Any:
        """A call that starts no tool."""
        signal.raise_if_set()
        return await self._unary(
            method, request, run, signal, stops=lambda _: True, within_s=self._timings.discover
        )

    async def _unary(
        self,
        method: UnaryMethod,
        request: Any,
        run: RunContext,
        signal: AbortSignal,
        *,
        stops: Any,
        within_s: float | None,
    ) -> Any:

        def attempt(replica: Replica) -> Awaitable[Any]:
            return call_unary(
                method,
                replica,
                request,
                run_metadata(replica, run),
                signal=signal,
                stops=stops,
                timings=self._timings,
                service=SERVICE,
                within_s=within_s,
            )

        try:
            return await self._attempts(attempt, run, signal)
        except CallFailed as failure:
            _raise_if(signal, stops)
            raise ExecutionFailed(failure.text) from None

    async def _attempts(
        self, attempt: Callable[[Replica], Awaitable[T]], run: RunContext, signal: AbortSignal
    ) -> T:
        resends = Resends(self._replicas, self._timings)
        return await resends.run(
            attempt,
            choose=lambda: self._home(run, resends.failed),
            missing="No mcp-pool is there to take the call.",
            may_resend=_may_resend,
            signal=signal,
        )

    def _home(self, run: RunContext, failed: list[Replica]) -> Replica | None:
        replica = pinned(self._replicas, run, failed)
        if replica is not None:
            self._homes[run.session_id] = (run.tenant_id, replica)
            self._homes.move_to_end(run.session_id)
            if len(self._homes) > MAX_SESSIONS:
                self._homes.popitem(last=False)
        return replica


def _stops_local(kind: AbortKind) -> bool:
    """Only a cancel stops a stdio call; all other kinds let it finish (mcp-pool 8.2)."""
    return kind is AbortKind.CANCEL


def _stops_remote(kind: AbortKind) -> bool:
    """After a shutdown the gate keeps the call for the next owner."""
    return kind in (AbortKind.CANCEL, AbortKind.SHUTDOWN)


def _raise_if(signal: AbortSignal, stops: Any) -> None:
    if signal.abort is not None and stops(signal.abort.kind):
        raise RunAborted(signal.abort)


def _may_resend(failure: CallFailed) -> bool:
    """Only a stream's work can have started; every other call is keyed, or starts no tool."""
    return not failure.started and failure.meaning in RESENT


async def _result(call: Any, reply: mcp_pool_pb2.ToolCallReply) -> mcp_pool_pb2.ToolCallResult | None:
    return reply.result if reply.WhichOneof("message") == "result" else None


def _read(document: common_pb2.Json) -> JsonValue:
    try:
        return loads(document.text)
    except JsonError:
        raise ExecutionFailed("The mcp-pool's answer is not JSON.") from None


def _read_list(document: common_pb2.Json) -> Sequence[JsonValue]:
    value = _read(document)
    return value if isinstance(value, list) else []
