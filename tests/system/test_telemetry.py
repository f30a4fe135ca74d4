"""What a whole stack tells a collector and a scraper about a turn: joined traces, real numbers, no content."""

import asyncio
import contextlib
import json
import re
from concurrent import futures

import aiohttp
import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from cli.model_choice import choose_model
from cli.stack import GATEWAY, MCP, MODEL, SANDBOX
from tests.common.support import until as soon
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble, openai_text
from tests.leaks.watch import secret
from tests.system.model_stack import AGENT as MODEL_AGENT
from tests.system.model_stack import ModelStack
from tests.system.support import Stack, calls, counting_manifest, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

AGENT = "told"
CONTENT = "verbatim-content"
KEY = secret("sk-key-of-telemetry-0123456789")
ANSWERS = [
    calls(AGENT, 0, ("counting__echo", {"text": CONTENT}), ("bash", {"command": f"echo {CONTENT}"})),
    {"agent": AGENT, "step": 1, "answer": CONTENT},
]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps spans as (service, span)."""

    def __init__(self):
        self.spans = []
        self.raw = ""

    def Export(self, request, context):
        self.raw += str(request)
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name):
        return [span for _, span in self.spans if span.name == name]


@pytest.fixture
def collector():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
    }
    server.start()
    yield collector
    server.stop(None)


async def scraped(stack):
    """The metrics of each process, by the addresses in their logs."""
    texts = {}
    async with aiohttp.ClientSession() as http:
        for name in (GATEWAY, MODEL, MCP, SANDBOX):
            [line] = [line for line in stack.lines(name) if "metrics_serving" in line]
            async with http.get(json.loads(line)["url"]) as answer:
                texts[name] = await answer.text()
    return texts


def value(text, name, **labels):
    """The sum of a metric's series that have these labels."""
    found = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if re.match(rf"{name}[ {{]", line)
        and all(f'{label}="{wanted}"' in line for label, wanted in labels.items())
    ]
    return sum(found) if found else None


@contextlib.asynccontextmanager
async def running(stack):
    await stack.start()
    try:
        yield
    except BaseException:
        print(stack.tail())
        raise
    finally:
        await stack.stop()


@pytest.mark.spec("operations:13.41")
async def test_a_turn_is_one_trace_through_all_services_and_shows_in_their_metrics(tmp_path, collector):
    stack = Stack(tmp_path, ANSWERS, environ=collector.environ)
    async with running(stack):
        async with stack.core() as core:
            await core.put_agent(AGENT, counting_manifest(AGENT))
            session = await core.create_session(AGENT)
            turn = await core.send_message(session, CONTENT)
            assert await asyncio.wait_for(core.turn_end(session, turn), 90) == "turn.completed"
        texts = await scraped(stack)
        await soon(lambda: collector.named("harness.run"))
    runs = {span.span_id: span for span in collector.named("harness.run")}
    effects = {span.span_id: span for span in collector.named("harness.effect")}
    assert {span.parent_span_id for span in effects.values()} <= runs.keys()
    for method, service in (
        ("ModelExecutor/Call", "nylorun-harness-model"),
        ("McpPool/Call", "nylorun-harness-mcp"),
        ("SandboxManager/Run", "nylorun-harness-sandbox"),
    ):
        served = [(by, span) for by, span in collector.spans if span.name == f"whippletree.v1.{method}"]
        assert served, method
        for by, span in served:
            assert by == service
            assert effects[span.parent_span_id].trace_id == span.trace_id

    [tool] = collector.named("tools/call echo")
    assert tool.parent_span_id in {span.span_id for span in collector.named("whippletree.v1.McpPool/Call")}

    gateway = texts[GATEWAY]
    assert value(gateway, "nylorun_harness_connected") == 1
    assert value(gateway, "nylorun_harness_service_ready") == 3
    assert value(gateway, "nylorun_harness_effect_duration_seconds_count", nylorun_effect_kind="model") == 2
    assert (
        value(gateway, "nylorun_harness_effect_duration_seconds_count", nylorun_effect_outcome="completed")
        == 4
    )
    model_call = "whippletree.v1.ModelExecutor/Call"
    assert value(gateway, "rpc_client_call_duration_seconds_count", rpc_method=model_call) == 2
    assert value(texts[MODEL], "rpc_server_call_duration_seconds_count", rpc_method=model_call) == 2
    assert value(gateway, "nylorun_harness_lease_wait_duration_seconds_count") >= 1
    assert value(texts[MODEL], "gen_ai_client_operation_duration_seconds_count") == 2
    assert value(texts[MCP], "mcp_client_operation_duration_seconds_count") == 1
    assert value(texts[MCP], "nylorun_mcp_connections", network_transport="pipe") == 1
    assert value(texts[MCP], "nylorun_mcp_children") == 1
    assert value(texts[SANDBOX], "nylorun_sandbox_exec_duration_seconds_count") >= 1
    assert value(texts[SANDBOX], "nylorun_sandbox_workspaces") == 1

    tokens = [path.read_text().strip() for path in (stack.plan.state.path / "tokens").iterdir()]
    told = collector.raw + "".join(texts.values())
    logs = "\n".join(line for _, line in stack.log)
    for word in (CONTENT, *tokens):
        assert word not in told
        assert word not in logs
    assert session not in "".join(texts.values())


async def test_the_trace_goes_on_to_the_model_provider(tmp_path, collector):
    async with serving(ProviderDouble(replies=[openai_text()])) as provider:
        stack = ModelStack(tmp_path, collector.environ)
        environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{provider.origin}/v1"}
        stack.choose(choose_model("openai/m", environ, stack.plan.state.path, stack.plan.core_url()))
        async with running(stack):
            async with stack.core() as core:
                session = await core.create_session(MODEL_AGENT)
                await core.send_message(session, CONTENT)
                await until(lambda: core.session(session), lambda seen: seen["status"] == "completed")
            await soon(lambda: collector.named("chat m") and collector.named("harness.run"))
    [request] = provider.requests
    sent = request.headers["traceparent"].split("-")
    [chat] = collector.named("chat m")
    [served] = collector.named("whippletree.v1.ModelExecutor/Call")
    [run] = collector.named("harness.run")
    assert sent[1:3] == [chat.trace_id.hex(), chat.span_id.hex()]
    assert chat.parent_span_id == served.span_id
    assert chat.trace_id == run.trace_id
    about = {item.key: item.value for item in chat.attributes}
    assert about["gen_ai.request.model"].string_value == "m"
    assert about["gen_ai.usage.output_tokens"].int_value > 0
    assert CONTENT not in collector.raw
    assert KEY not in collector.raw
