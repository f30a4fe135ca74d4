"""What stands around every handler of a port: the bearer, the catch-all, the trace, the count of handlers.

gRPC's interceptors cost every call coroutines of their own, and handlers that are registered by name cost
the server's loop a pending task per method, all of which it waits on anew for each call. So the edge is the
one place that the server asks for a handler, and gives it wrapped. gRPC looks at the kind of the handler
function: a wrapper keeps the kind of what it wraps.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from services.common import metrics
from services.common.auth import EXEMPT_PREFIX, REFUSAL_TEXT, STRANGER_TEXT, BearerCheck
from services.common.errors import answer_exception
from services.common.logs import trace_context
from services.common.metadata import AUTHORIZATION, RUN_TOKEN, TRACEPARENT, run_token
from services.common.tls import client_names

_ENDLESS: Final = (
    "/grpc.health.v1.Health/",
    "/grpc.reflection.",
    "/whippletree.v1.Admin/",
)
"""Handlers that a stopping server never waits for."""

Spanner = Callable[[str, Any], Any]


class Edge(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The handlers of a server. Generated code adds them to `as_server`.

    `spans`, when given, makes a context manager around each handler. Where `clients` are given, a caller's
    certificate must carry one of these names, except for health.
    """

    def __init__(self, check: BearerCheck, spans: Spanner | None = None, clients: Sequence[str] = ()) -> None:
        self._check = check
        self._clients = frozenset(clients)
        self._spans = spans
        self._handlers: dict[str, Any] = {}
        self._refusing: dict[str, Any] = {}
        self._running = 0
        self._idle: asyncio.Event | None = None

    @property
    def as_server(self) -> grpc.aio.Server:
        """Takes handlers in place of a server: it has the two methods that generated code calls."""
        return cast("grpc.aio.Server", self)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Takes the handlers of a service."""
        for name, handler in method_handlers.items():
            method = f"/{service_name}/{name}"
            made = _rebuild(handler, self._wrap(method, _behavior(handler)))
            self._handlers[method] = _timed(method, self._only_for_clients(method, made))
            self._refusing[method] = _rebuild(handler, _refuse)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """The same handlers once more, as a server that does not know them by name would need them."""

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call, or one that refuses it; None for a method that is not there."""
        method = handler_call_details.method
        bearer = trace = token = None
        for name, value in handler_call_details.invocation_metadata or ():
            if name == AUTHORIZATION and bearer is None:
                bearer = value
            elif name == TRACEPARENT and trace is None:
                trace = value
            elif name == RUN_TOKEN and token is None:
                token = value
        # The handler runs in this task, so it and its log lines know them. Reading the metadata once more in
        # there would build it anew.
        trace_context.set(trace)
        run_token.set(token)
        allowed = method.startswith(EXEMPT_PREFIX) or self._check.allows(bearer)
        return (self._handlers if allowed else self._refusing).get(method)

    async def wait_idle(self) -> None:
        """Waits until no handler of an effect or another bounded call is running."""
        while self._running:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def running(self) -> int:
        """How many handlers `wait_idle` waits for."""
        return self._running

    def _leave(self) -> None:
        self._running -= 1
        if not self._running and self._idle is not None:
            self._idle.set()

    def _wrap(self, method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
        counted = not method.startswith(_ENDLESS)
        spans = self._spans if counted else None

        if inspect.isasyncgenfunction(behavior):

            async def stream(request: Any, context: Any) -> Any:
                self._running += counted
                try:
                    async for reply in behavior(request, context):
                        yield reply
                except BaseException as error:  # noqa: BLE001  (the edge of the process)
                    await answer_exception(context, method, error)
                finally:
                    if counted:
                        self._leave()

            return stream

        async def call(request: Any, context: Any) -> Any:
            self._running += counted
            try:
                if spans is None:
                    return await behavior(request, context)
                with spans(method, context):
                    return await behavior(request, context)
            except BaseException as error:  # noqa: BLE001  (the edge of the process)
                await answer_exception(context, method, error)
            finally:
                if counted:
                    self._leave()

        return call

    def _only_for_clients(self, method: str, handler: Any) -> Any:
        """gRPC names the peer in a handler's context only, so this check stands around the handler."""
        behavior, clients = _behavior(handler), self._clients
        if not clients or method.startswith(EXEMPT_PREFIX):
            return handler

        if inspect.isasyncgenfunction(behavior):

            async def stream(request: Any, context: Any) -> Any:
                if clients.isdisjoint(client_names(context.auth_context())):
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, STRANGER_TEXT)
                async for reply in behavior(request, context):
                    yield reply

            return _rebuild(handler, stream)

        async def call(request: Any, context: Any) -> Any:
            if clients.isdisjoint(client_names(context.auth_context())):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, STRANGER_TEXT)
            return await behavior(request, context)

        return _rebuild(handler, call)


def _behavior(handler: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    return found


def _timed(method: str, handler: Any) -> Any:
    """The handler with its time as a metric, where metrics are on. Endless ones have no time."""
    if not metrics.current.enabled or method.startswith(_ENDLESS):
        return handler
    behavior = _behavior(handler)
    name = method.lstrip("/")

    def note(began: float, status: str) -> None:
        metrics.current.record(
            "rpc.server.call.duration",
            time.perf_counter() - began,
            {"rpc.system.name": "grpc", "rpc.method": name, "rpc.response.status_code": status},
        )

    if inspect.isasyncgenfunction(behavior):

        async def stream(request: Any, context: Any) -> Any:
            began, status = time.perf_counter(), "CANCELLED"
            try:
                async for reply in behavior(request, context):
                    yield reply
                status = "OK"
            except Exception:
                status = _status(context)
                raise
            finally:
                note(began, status)

        return _rebuild(handler, stream)

    async def call(request: Any, context: Any) -> Any:
        began, status = time.perf_counter(), "CANCELLED"
        try:
            reply = await behavior(request, context)
            status = "OK"
            return reply
        except Exception:
            status = _status(context)
            raise
        finally:
            note(began, status)

    return _rebuild(handler, call)


def _status(context: Any) -> str:
    """The status that an aborted call was given."""
    code = context.code()
    found = next((one for one in grpc.StatusCode if code in (one, one.value[0])), grpc.StatusCode.UNKNOWN)
    return found.name


async def _refuse(request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL_TEXT)


def _rebuild(handler: Any, behavior: Callable[..., Any]) -> Any:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(
        behavior,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
