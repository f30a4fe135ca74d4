from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from protocol.jsjson import Parsed
from services.common.logs import trace_context
from services.common.telemetry import Telemetry, configure_telemetry
from tests.gateway.support import at_once, effect, gateway, settle
from tests.gateway.virtual_time import virtual_time

EXECUTE = {"status": "execute"}


class Spans(Telemetry):
    """Notes each span and gives it a number as its trace context."""

    enabled = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], str | None]] = []

    @contextlib.contextmanager
    def span(
        self, name: str, attributes: Mapping[str, str], parent: str | None = None
    ) -> Iterator[str | None]:
        self.seen.append((name, dict(attributes), parent))
        yield f"span {len(self.seen)}"


@virtual_time
async def test_a_run_has_a_span_and_each_execution_one_below_it_with_ids_only():
    contexts: dict[str, str | None] = {}

    async def execute(request: Any, run: Any, signal: Any, rejoin: bool) -> Parsed:
        await settle()
        contexts[request.effect_id] = trace_context.get()
        return Parsed("secret output", plain=True)

    async with gateway(at_once(effect("e1", input="secret"), effect("e2", "model"))) as gw:
        gw.host.telemetry = Spans()
        gw.fake.behaviours |= {"e1": execute, "e2": execute}
        core = await gw.leased()
        for _ in range(2):
            core.answer(await core.expect("effect.intent"), EXECUTE)
        for _ in range(2):
            report = await core.expect("effect.outcome")
            core.answer(report, {"status": "completed", "outcome": {"value": 1}})
        await core.expect("turn.completed")
        run, first, second = gw.host.telemetry.seen
    assert run[:2] == (
        "harness.run",
        {"nylorun.session.id": "s1", "nylorun.run.id": "r1", "nylorun.turn.id": "t1"},
    )
    assert (first[0], first[1], first[2]) == (
        "harness.effect",
        {"nylorun.effect.id": "e1", "nylorun.effect.kind": "tool"},
        "span 1",
    )
    assert second[2] == "span 1"
    assert contexts == {"e1": "span 2", "e2": "span 3"}


@virtual_time
async def test_without_telemetry_every_run_still_has_a_trace_of_its_own():
    contexts: list[str | None] = []

    async def execute(request: Any, run: Any, signal: Any, rejoin: bool) -> Parsed:
        contexts.append(trace_context.get())
        return Parsed(None, plain=True)

    async with gateway(at_once(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = execute
        for number in range(2):
            core = await gw.leased(run_id=f"r{number}", session_id=f"s{number}")
            core.answer(await core.expect("effect.intent"), EXECUTE)
            await core.expect("effect.outcome")
    assert all(context is not None and context.startswith("00-") for context in contexts)
    assert len(set(contexts)) == 2


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_with_an_endpoint_a_run_and_its_effects_reach_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector, server = Collector(), grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    telemetry = configure_telemetry({"OTEL_EXPORTER_OTLP_ENDPOINT": url}, "harness")
    try:
        async with gateway(at_once(effect("e1"))) as gw:
            gw.host.telemetry = telemetry
            core = await gw.leased()
            core.answer(await core.expect("effect.intent"), EXECUTE)
            report = await core.expect("effect.outcome")
            core.answer(report, {"status": "completed", "outcome": {"value": 1}})
            await core.expect("turn.completed")
        await telemetry.flush()
    finally:
        server.stop(None)
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"harness.run", "harness.effect"}
    run, executed = spans["harness.run"], spans["harness.effect"]
    assert not run.parent_span_id
    assert (executed.trace_id, executed.parent_span_id) == (run.trace_id, run.span_id)
