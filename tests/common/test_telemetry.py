import asyncio
import json
import subprocess
import sys
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from whippletree.v1 import common_pb2, model_executor_pb2, model_executor_pb2_grpc

from services.common.logs import trace_context
from services.common.metadata import TRACEPARENT
from services.common.telemetry import (
    SharedTelemetry,
    Telemetry,
    configure_telemetry,
    new_trace_id,
    traceparent,
)
from tests.common.support import BOUND_S, Recorder, served

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class Traced(Recorder):
    async def Call(self, request, context):
        self.seen.append(str(trace_context.get()))
        return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text="1"))


async def call(port):
    stub = model_executor_pb2_grpc.ModelExecutorStub(port.channel)
    await stub.Call(model_executor_pb2.ModelCallRequest(), metadata=(*port.metadata, (TRACEPARENT, PARENT)))


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported():
    program = (
        "import sys\n"
        "from services.common.telemetry import configure_telemetry\n"
        "import services.common.server, services.model_executor.main\n"
        "telemetry = configure_telemetry({}, 'harness-model')\n"
        "print(telemetry.enabled, any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, timeout=BOUND_S, check=True
    )
    assert done.stdout == "False False\n"


def test_the_sdk_s_own_switch_wins():
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317", "OTEL_SDK_DISABLED": "TRUE"}
    assert type(configure_telemetry(environ, "x")) is Telemetry


def test_without_spans_the_parent_is_sent_on():
    with Telemetry().span("x", {}, PARENT) as sent:
        assert sent == PARENT
    assert len(new_trace_id()) == 32
    assert traceparent("c" * 32).startswith("00-" + "c" * 32 + "-")


async def test_the_trace_of_a_call_is_known_while_it_is_served_and_not_afterwards():
    service = Traced()
    async with served(service) as port:
        await call(port)
    assert service.seen[0] == PARENT
    assert trace_context.get() is None


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans = []

    def Export(self, request, context):
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.url = f"http://127.0.0.1:{port}"
    yield collector
    server.stop(None)


async def test_with_an_endpoint_spans_join_across_processes_and_hold_no_content(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    telemetry = configure_telemetry(environ, "harness-model")
    service = Traced()
    async with served(service, telemetry=telemetry) as port:
        with telemetry.span("harness.effect", {"nylorun.effect.id": "e"}, PARENT) as sent:
            stub = model_executor_pb2_grpc.ModelExecutorStub(port.channel)
            await stub.Call(
                model_executor_pb2.ModelCallRequest(call=common_pb2.Json(text="secret prompt")),
                metadata=(*port.metadata, (TRACEPARENT, sent)),
            )
        with pytest.raises(ValueError, match="secret"), telemetry.span("failed", {}, PARENT):
            raise ValueError("secret")
    async with asyncio.timeout(BOUND_S):
        await telemetry.flush()
    spans = {span.name: span for _, span in collector.spans}
    assert {name for name, _ in collector.spans} == {"nylorun-harness-model"}
    server, client = spans["whippletree.v1.ModelExecutor/Call"], spans["harness.effect"]
    assert server.trace_id.hex() == client.trace_id.hex() == "a" * 32
    assert server.parent_span_id == client.span_id
    assert client.parent_span_id.hex() == "b" * 16
    assert "secret" not in json.dumps([str(span) for span in spans.values()])
    assert {item.key: item.value.string_value for item in spans["failed"].attributes} == {
        "error.type": "ValueError"
    }


async def test_services_of_one_process_share_its_traces_and_never_end_them(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    whole = configure_telemetry({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, "harness")
    for _ in range(2):
        # The first one's end flushes nothing: the second one's spans still come through.
        async with served(Traced(), telemetry=SharedTelemetry(whole)) as port:
            await call(port)
    await whole.flush()
    await whole.flush()
    assert [span.name for _, span in collector.spans] == ["whippletree.v1.ModelExecutor/Call"] * 2
