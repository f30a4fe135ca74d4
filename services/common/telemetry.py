"""Traces: `traceparent` crosses always, spans are made only when an OTLP endpoint is configured. Metrics are
next door; what is left of both is sent by `flush`.

operations 12.11. OpenTelemetry is imported when it is configured and not before: it costs a service half
a second of start.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from services.common import metrics
from services.common.logs import error_text, get_logger, trace_context
from services.common.metadata import TRACEPARENT, find

Attributes = Mapping[str, str | int]
"""What is known when a span begins; what is put in until it ends is on it, too. Never content."""

FLUSH_S: Final = 2.0
_RANDOM: Final = random.Random()
"""Ids of traces are no secrets: a system call per call would cost more than the rest of them."""
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def new_trace_id() -> str:
    """A fresh trace id: 32 hex digits."""
    return f"{_RANDOM.getrandbits(128):032x}"


def traceparent(trace_id: str) -> str:
    """A trace context that is not sampled, with a fresh span id."""
    return f"00-{trace_id}-{_RANDOM.getrandbits(64):016x}-00"


def traceparent_of(text: str | None) -> str | None:
    """The text when it is a traceparent of the version that is in use; None for everything else."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


class Telemetry:
    """Tracing that makes no spans."""

    enabled = False
    _flushed = False
    server_span: Any = None
    """`server_span(method, context)`, a context manager around a handler; None makes none."""

    def span(
        self, name: str, attributes: Attributes, parent: str | None = None
    ) -> contextlib.AbstractContextManager[str | None]:
        """A span around a block; gives the traceparent to send on (the parent's own without spans)."""
        return contextlib.nullcontext(parent)

    def incoming(
        self, name: str, attributes: Attributes, parent: str | None
    ) -> contextlib.AbstractContextManager[str | None]:
        """The same around the work for a request that came in."""
        return contextlib.nullcontext(parent)

    def _stops(self) -> list[Callable[[], object]]:
        """What ends the exporters."""
        return [metrics.current.stop] if metrics.current.enabled else []

    async def flush(self) -> None:
        """Sends what is left; at most 2 s. A second time does nothing."""
        loop = asyncio.get_running_loop()
        stops = [] if self._flushed else self._stops()
        self._flushed = True
        for stop in stops:
            done: asyncio.Future[BaseException | None] = loop.create_future()
            metrics.stop_in_thread(stop, _settler(loop, done))
            try:
                async with asyncio.timeout(FLUSH_S / len(stops)):
                    error = await done
            except TimeoutError:
                get_logger().warning("telemetry_flush_timeout", error="what was left was dropped")
            else:
                if error is not None:
                    get_logger().warning("telemetry_flush_failed", error=error_text(error))


class SharedTelemetry(Telemetry):
    """Another's traces, for one of several services in a process: its end is not theirs."""

    def __init__(self, whole: Telemetry) -> None:
        self._whole = whole
        self.enabled = whole.enabled
        self.server_span = whole.server_span

    def span(
        self, name: str, attributes: Attributes, parent: str | None = None
    ) -> contextlib.AbstractContextManager[str | None]:
        """See Telemetry."""
        return self._whole.span(name, attributes, parent)

    def incoming(
        self, name: str, attributes: Attributes, parent: str | None
    ) -> contextlib.AbstractContextManager[str | None]:
        """See Telemetry."""
        return self._whole.incoming(name, attributes, parent)

    async def flush(self) -> None:
        """Leaves it to the owner."""


current: Telemetry = Telemetry()
"""The process's traces, for what has no way to be given them."""


def use(telemetry: Telemetry) -> None:
    """Makes it `current`."""
    global current
    current = telemetry


def _settler(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[BaseException | None]
) -> Callable[[BaseException | None], None]:
    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(error)

    def later(error: BaseException | None) -> None:
        # The loop may be closed by the time a slow exporter gives up.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, error)

    return later


def configure_telemetry(environ: Mapping[str, str], service: str) -> Telemetry:
    """Tracing as the environment asks for it."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Telemetry()
    if not any(environ.get(name, "").strip() for name in _ENDPOINTS):
        return Telemetry()
    if environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return Telemetry()
    return _OtlpTelemetry(environ, service)


class _OtlpTelemetry(Telemetry):
    """Spans to an OTLP endpoint."""

    enabled = True

    def __init__(self, environ: Mapping[str, str], service: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        name = environ.get("OTEL_SERVICE_NAME", "").strip() or f"nylorun-{service}"
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(environ)))
        self._tracer = self._provider.get_tracer("whippletree")
        self.server_span = self._server_span

    @contextlib.contextmanager
    def span(self, name: str, attributes: Attributes, parent: str | None = None) -> Iterator[str | None]:
        """A client span; an exception marks it with its type and nothing of its text."""
        from opentelemetry.trace import SpanKind

        with self._run(name, attributes, parent, SpanKind.CLIENT) as sent:
            yield sent

    @contextlib.contextmanager
    def incoming(self, name: str, attributes: Attributes, parent: str | None) -> Iterator[str | None]:
        """A server span; as `span`."""
        from opentelemetry.trace import SpanKind

        with self._run(name, attributes, parent, SpanKind.SERVER) as sent:
            yield sent

    @contextlib.contextmanager
    def _server_span(self, method: str, context: Any) -> Iterator[None]:
        from opentelemetry.trace import SpanKind

        parent = find(context.invocation_metadata(), TRACEPARENT)
        attributes = {"rpc.system.name": "grpc", "rpc.method": method.lstrip("/")}
        with self._run(method.lstrip("/"), attributes, parent, SpanKind.SERVER) as sent:
            trace_context.set(sent)
            yield

    @contextlib.contextmanager
    def _run(self, name: str, attributes: Attributes, parent: str | None, kind: Any) -> Iterator[str]:
        from opentelemetry.trace import StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {TRACEPARENT: parent} if parent else {}
        context = TraceContextTextMapPropagator().extract(carrier)
        with self._tracer.start_as_current_span(
            name,
            context=context,
            kind=kind,
            attributes=dict(attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            ids = span.get_span_context()
            known = set(attributes)
            try:
                yield f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{int(ids.trace_flags):02x}"
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise
            finally:
                span.set_attributes({name: value for name, value in attributes.items() if name not in known})

    def _stops(self) -> list[Callable[[], object]]:
        return [self._provider.shutdown, *super()._stops()]


def _exporter(environ: Mapping[str, str]) -> Any:
    protocol = (
        environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "").strip()
        or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
        or "grpc"
    )
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter()
