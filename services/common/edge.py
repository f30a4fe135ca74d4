"""What stands around every handler of a port: the bearer, the catch-all, the trace, the count of handlers.

One thin interceptor instead of several: each one costs every call a wrapped coroutine. gRPC looks at the
kind of the handler function, so a wrapper keeps the kind of what it wraps.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from services.common.auth import REFUSAL_TEXT, BearerCheck
from services.common.errors import answer_exception
from services.common.logs import trace_context
from services.common.metadata import TRACEPARENT, find

_ENDLESS: Final = (
    "/grpc.health.v1.Health/",
    "/grpc.reflection.",
    "/whippletree.v1.Admin/",
)
"""Handlers that a stopping server never waits for."""

Spanner = Callable[[str, Any], Any]


class Edge(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The interceptor of a server. `spans`, when given, makes a context manager around each handler."""

    def __init__(self, check: BearerCheck, spans: Spanner | None = None) -> None:
        self._check = check
        self._spans = spans
        self._wrapped: dict[str, Any] = {}
        self._refusing: dict[str, Any] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Gives the handler of a call, or one that refuses it."""
        method = handler_call_details.method
        metadata = handler_call_details.invocation_metadata
        # The handler runs in this task, so it and its log lines know the trace. Reading the metadata once
        # more in there would build it anew.
        trace_context.set(find(metadata, TRACEPARENT))
        if not self._check.allows(method, metadata):
            refusing = self._refusing.get(method)
            if refusing is None:
                handler = await continuation(handler_call_details)
                if handler is None:
                    return None
                refusing = self._refusing[method] = _rebuild(handler, _refuse)
            return refusing
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = _rebuild(handler, self._wrap(method, _behavior(handler)))
        return wrapped

    async def wait_idle(self) -> None:
        """Waits until no handler of an effect or another bounded call is running."""
        await self._idle.wait()

    def running(self) -> int:
        """How many handlers `wait_idle` waits for."""
        return len(self._running)

    def _enter(self) -> asyncio.Task[Any] | None:
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
            self._idle.clear()
        return task

    def _leave(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            self._running.discard(task)
            if not self._running:
                self._idle.set()

    def _wrap(self, method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
        counted = not method.startswith(_ENDLESS)
        spans = self._spans if counted else None

        if inspect.isasyncgenfunction(behavior):

            async def stream(request: Any, context: Any) -> Any:
                task = self._enter() if counted else None
                try:
                    async for reply in behavior(request, context):
                        yield reply
                except BaseException as error:  # noqa: BLE001  (the edge of the process)
                    await answer_exception(context, method, error)
                finally:
                    self._leave(task)

            return stream

        async def call(request: Any, context: Any) -> Any:
            task = self._enter() if counted else None
            try:
                if spans is None:
                    return await behavior(request, context)
                with spans(method, context):
                    return await behavior(request, context)
            except BaseException as error:  # noqa: BLE001  (the edge of the process)
                await answer_exception(context, method, error)
            finally:
                self._leave(task)

        return call


def _behavior(handler: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    return found


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
