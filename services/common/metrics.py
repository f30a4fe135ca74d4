"""Metrics by OpenTelemetry's conventions, and Whippletree's own (operations 12.11).

Off unless asked for: `OTEL_METRICS_EXPORTER=prometheus` serves them for scraping, an OTLP endpoint gets them
pushed. Until then `current` notes nothing and OpenTelemetry is not imported. Attributes are kinds, names of
services and status codes: never an id of a session, never content.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from services.common.logs import error_text, get_logger

PROMETHEUS_HOST: Final = "127.0.0.1"
PROMETHEUS_PORT: Final = 9464
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
"""Upper bounds of buckets in seconds: from a call on loopback to the longest call."""

Attributes = Mapping[str, str]
Observed = Iterable[tuple[float, Attributes]]
Kind = Literal["histogram", "counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. Histograms are in seconds, counters count, gauges are what is there now."""

    kind: Kind
    says: str
    attributes: tuple[str, ...] = ()


INSTRUMENTS: Final[Mapping[str, Instrument]] = {
    "rpc.server.call.duration": Instrument(
        "histogram",
        "How long calls took that this process served.",
        ("rpc.system.name", "rpc.method", "rpc.response.status_code"),
    ),
    "rpc.client.call.duration": Instrument(
        "histogram",
        "How long effect calls took that this gateway made.",
        ("rpc.system.name", "rpc.method", "rpc.response.status_code"),
    ),
    "http.client.request.duration": Instrument(
        "histogram",
        "How long requests to a gates service took.",
        ("http.request.method", "server.address", "http.response.status_code", "error.type"),
    ),
    "gen_ai.client.operation.duration": Instrument(
        "histogram", "How long model calls took.", ("gen_ai.operation.name", "error.type")
    ),
    "mcp.client.operation.duration": Instrument(
        "histogram", "How long tool calls of MCP servers took.", ("mcp.method.name", "error.type")
    ),
    "mcp.client.session.duration": Instrument(
        "histogram", "How long connections to MCP servers lived.", ("network.transport",)
    ),
    "nylorun.sandbox.exec.duration": Instrument(
        "histogram", "How long operations on sandboxes took: commands, file tools, stops.", ("error.type",)
    ),
    "nylorun.harness.effect.duration": Instrument(
        "histogram",
        "How long executing an effect took, with waits and repeats.",
        ("nylorun.effect.kind", "nylorun.effect.outcome"),
    ),
    "nylorun.harness.lease.wait.duration": Instrument(
        "histogram", "How long a lease was outstanding before a run came."
    ),
    "nylorun.harness.give_back.duration": Instrument(
        "histogram", "How long giving the runs back took at a stop."
    ),
    "nylorun.harness.reconnects": Instrument(
        "counter", "Connections to the core that failed or ended.", ("nylorun.reason",)
    ),
    "nylorun.harness.connected": Instrument("gauge", "1 while the gateway is connected to its core, else 0."),
    "nylorun.harness.draining": Instrument("gauge", "1 while the gateway takes no more work, else 0."),
    "nylorun.harness.runs.active": Instrument("gauge", "Runs that the gateway holds."),
    "nylorun.harness.service.ready": Instrument(
        "gauge", "1 while the gateway counts the service as serving, else 0.", ("nylorun.service",)
    ),
    "nylorun.harness.service.in_flight": Instrument(
        "gauge", "Calls of the gateway at the service.", ("nylorun.service",)
    ),
    "nylorun.service.in_flight": Instrument(
        "gauge", "Work in flight in this service.", ("nylorun.service", "nylorun.work.kind")
    ),
    "nylorun.service.draining": Instrument(
        "gauge", "1 while this service takes no more work, else 0.", ("nylorun.service",)
    ),
    "nylorun.mcp.connections": Instrument(
        "gauge", "Connections to MCP servers, those being closed included.", ("network.transport",)
    ),
    "nylorun.mcp.children": Instrument("gauge", "Stdio servers whose process groups are not yet gone."),
    "nylorun.sandbox.workspaces": Instrument(
        "gauge", "Workspaces by the state of their compute.", ("nylorun.state",)
    ),
}


class Metrics:
    """Notes nothing."""

    enabled = False

    def record(self, name: str, value: float, attributes: Attributes | None = None) -> None:
        """One more value of a histogram (seconds), or so many more of a counter."""

    def observe(self, name: str, read: Callable[[], Observed]) -> None:
        """`read` gives a gauge's values whenever they are asked for, in a thread of the exporter's."""

    def stop(self) -> None:
        """Sends what is left. Blocks for as long as the exporter likes."""


current: Metrics = Metrics()
"""The process's metrics."""


def configure_metrics(environ: Mapping[str, str], service: str) -> Metrics:
    """Sets `current` as the environment asks for it. What can't be served is logged: it stops no process."""
    global current
    kinds = _exporters(environ)
    if kinds:
        try:
            current = _Otel(environ, service, kinds)
        except (OSError, ValueError) as error:
            get_logger().error("telemetry_metrics_failed", error=error_text(error))
    return current


def _exporters(environ: Mapping[str, str]) -> tuple[str, ...]:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    asked = environ.get("OTEL_METRICS_EXPORTER", "").strip()
    has_endpoint = any(environ.get(name, "").strip() for name in _ENDPOINTS)
    if not asked:
        return ("otlp",) if has_endpoint else ()
    kinds = tuple(dict.fromkeys(part.strip() for part in asked.split(",") if part.strip()))
    unknown = [kind for kind in kinds if kind not in ("prometheus", "otlp", "none")]
    if unknown:
        get_logger().error(
            "telemetry_metrics_failed",
            error=f"OTEL_METRICS_EXPORTER has {', '.join(unknown)}; it may be prometheus, otlp or none.",
        )
    return tuple(kind for kind in kinds if kind == "prometheus" or (kind == "otlp" and has_endpoint))


class _Otel(Metrics):
    """Metrics of the SDK."""

    enabled = True

    def __init__(self, environ: Mapping[str, str], service: str, kinds: tuple[str, ...]) -> None:
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource

        self._server: Any = None
        self._stopped = False
        readers: list[Any] = []
        if "otlp" in kinds:
            readers.append(_otlp_reader(environ))
        if "prometheus" in kinds:
            readers.append(self._served(environ))
        name = environ.get("OTEL_SERVICE_NAME", "").strip() or f"nylorun-{service}"
        self._provider = MeterProvider(
            metric_readers=readers,
            resource=Resource.create({"service.name": name}),
            shutdown_on_exit=False,
        )
        self._observation = Observation
        self._reads: dict[str, list[Callable[[], Observed]]] = {}
        self._notes: dict[str, Callable[..., None]] = {}
        meter = self._provider.get_meter("whippletree")
        for instrument, facts in INSTRUMENTS.items():
            if facts.kind == "histogram":
                self._notes[instrument] = meter.create_histogram(
                    instrument, "s", facts.says, explicit_bucket_boundaries_advisory=_BOUNDS
                ).record
            elif facts.kind == "counter":
                self._notes[instrument] = meter.create_counter(instrument, "", facts.says).add
            else:
                self._reads[instrument] = []
                meter.create_observable_gauge(instrument, [self._reader_of(instrument)], "", facts.says)

    def _served(self, environ: Mapping[str, str]) -> Any:
        """A reader behind an HTTP port. Raises OSError and ValueError."""
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, start_http_server

        host = environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or PROMETHEUS_HOST
        text = environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or str(PROMETHEUS_PORT)
        if not (text.isascii() and text.isdigit() and int(text[:6]) <= 65535):
            raise ValueError("OTEL_EXPORTER_PROMETHEUS_PORT must be a port from 1 to 65535")
        registry = CollectorRegistry()
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
        try:
            self._server, thread = start_http_server(int(text), host, registry)
        except OSError as error:
            raise OSError(
                f"metrics can't be served on {host}:{text} ({error.strerror or error}); "
                "OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT name the address"
            ) from None
        thread.name = "prometheus"
        port = self._server.server_address[1]
        get_logger().info("metrics_serving", url=f"http://{host}:{port}/metrics")
        return reader

    def _reader_of(self, instrument: str) -> Callable[[Any], list[Any]]:
        def read(options: Any) -> list[Any]:
            del options
            return [
                self._observation(value, dict(attributes))
                for source in self._reads[instrument]
                for value, attributes in source()
            ]

        return read

    def record(self, name: str, value: float, attributes: Attributes | None = None) -> None:
        """Notes a value."""
        self._notes[name](value, attributes)

    def observe(self, name: str, read: Callable[[], Observed]) -> None:
        """Adds a source of a gauge's values."""
        self._reads[name].append(read)

    def stop(self) -> None:
        """Sends what is left and closes the port; a second time does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._provider.shutdown()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _otlp_reader(environ: Mapping[str, str]) -> Any:
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    protocol = (
        environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "").strip()
        or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
        or "grpc"
    )
    exporter: Any
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        exporter = GrpcExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        exporter = HttpExporter()
    return PeriodicExportingMetricReader(exporter)


def stop_in_thread(stop: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
    """Runs a `stop` beside the loop and says how it ended: a thread that is stuck in an exporter holds no exit
    up."""

    def run() -> None:
        try:
            stop()
        except Exception as error:  # noqa: BLE001  (exporters raise what their transports raise)
            done(error)
        else:
            done(None)

    threading.Thread(target=run, name="telemetry stop", daemon=True).start()
