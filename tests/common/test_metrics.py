"""Metrics: off by default, served for Prometheus, pushed by OTLP, and what the dashboard asks for exists."""

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from services.common import metrics
from services.common.logs import configure_logging
from services.common.metrics import INSTRUMENTS, Metrics, configure_metrics
from services.common.telemetry import Telemetry
from services.common.work import WorkBook
from tests.common.support import BOUND_S, Recorder, served
from tests.common.test_server import Echo, call_of, stub

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "whippletree.json"
PROMETHEUS = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(metrics, "current", Metrics())


@pytest.fixture
def prometheus():
    made = configure_metrics(PROMETHEUS, "harness-model")
    assert made.enabled
    yield made
    made.stop()


def scrape(made) -> str:
    port = made._server.server_address[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=BOUND_S) as answer:
        return answer.read().decode()


def series(text: str) -> dict[str, set[str]]:
    """The label names of each metric's name."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", line).groups()
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


def test_nothing_is_imported_or_served_unless_asked_for():
    code = (
        "import sys\n"
        "from services.common import metrics\n"
        "metrics.configure_metrics({}, 'x')\n"
        "metrics.current.record('rpc.server.call.duration', 1.0, {})\n"
        "print(metrics.current.enabled, [n for n in sys.modules if n.startswith(('opentelemetry', 'prometheus'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=BOUND_S * 2
    )
    assert done.stdout.strip() == "False []"


@pytest.mark.parametrize(
    ("environ", "kinds"),
    [
        ({}, ()),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, ()),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:1"}, ("otlp",)),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, ("prometheus",)),
        (
            {"OTEL_METRICS_EXPORTER": "prometheus, otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1"},
            ("prometheus", "otlp"),
        ),
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_SDK_DISABLED": "TRUE"}, ()),
        ({"OTEL_METRICS_EXPORTER": "statsd"}, ()),
    ],
)
def test_the_standard_variables_choose_the_exporters(environ, kinds):
    assert metrics._exporters(environ) == kinds


def test_a_port_that_is_taken_or_none_is_said_and_stops_nothing(prometheus, capsys):
    configure_logging("model-executor")
    taken = str(prometheus._server.server_address[1])
    for text, said in ((taken, "OTEL_EXPORTER_PROMETHEUS_PORT name the address"), ("x", "must be a port")):
        metrics.current = Metrics()
        made = configure_metrics({**PROMETHEUS, "OTEL_EXPORTER_PROMETHEUS_PORT": text}, "x")
        assert not made.enabled
        assert said in capsys.readouterr().out


async def test_calls_and_work_are_shown_with_kinds_and_statuses_and_never_with_ids_or_content(prometheus):
    class Working(Echo):
        def __init__(self):
            super().__init__()
            self.work = WorkBook()

    service = Working()
    async with served(service) as port:
        await stub(port).Call(call_of("secret-text"), metadata=port.metadata, timeout=BOUND_S)
        service.failure = ValueError("secret-fault")
        with pytest.raises(Exception, match="INTERNAL"):
            await stub(port).Call(call_of("secret-text"), metadata=port.metadata, timeout=BOUND_S)
        service.work.begin("model", "secret-session", "secret-effect").end("completed")
        service.work.begin("model", "secret-session", "secret-effect-2").end("aborted")
        held = service.work.begin("mcp", "secret-session", "secret-effect-3")
        text = await asyncio.to_thread(scrape, prometheus)
        held.end()
        # An autoscaler takes a series that is missing for no answer.
        idle = await asyncio.to_thread(scrape, prometheus)
    for kind in ("model", "mcp"):
        assert (
            f'nylorun_service_in_flight{{nylorun_service="{service.service}",nylorun_work_kind="{kind}"}} 0.0'
            in idle
        )
    method = 'rpc_method="whippletree.v1.ModelExecutor/Call"'
    for status in ("OK", "INTERNAL"):
        wanted = f'rpc_server_call_duration_seconds_count{{{method},rpc_response_status_code="{status}",'
        assert f'{wanted}rpc_system_name="grpc"}} 1.0' in text
    calls = [
        line
        for line in text.splitlines()
        if line.startswith("gen_ai_client_operation_duration_seconds_count")
    ]
    assert len(calls) == 2
    assert all('gen_ai_operation_name="chat"' in line and line.endswith(" 1.0") for line in calls)
    assert 'error_type="aborted"' in "".join(calls)
    assert (
        f'nylorun_service_in_flight{{nylorun_service="{service.service}",nylorun_work_kind="mcp"}} 1.0'
        in text
    )
    assert f'nylorun_service_draining{{nylorun_service="{service.service}"}} 0.0' in text
    assert "secret" not in text


async def test_a_draining_service_shows_it(prometheus):
    service = Recorder()
    async with served(service, drain_delay_ms=0) as port:
        from whippletree.v1 import admin_pb2, admin_pb2_grpc

        async for _ in admin_pb2_grpc.AdminStub(port.channel).Drain(
            admin_pb2.DrainRequest(), metadata=port.metadata, timeout=BOUND_S
        ):
            pass
        assert "} 1.0" in next(
            line
            for line in (await asyncio.to_thread(scrape, prometheus)).splitlines()
            if line.startswith("nylorun_service_draining")
        )


async def test_the_end_of_a_process_closes_the_port(prometheus):
    port = prometheus._server.server_address[1]
    await Telemetry().flush()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


def test_every_query_of_the_dashboard_asks_for_metrics_and_labels_that_exist(prometheus):
    for name, instrument in INSTRUMENTS.items():
        attributes = dict.fromkeys(instrument.attributes, "x")
        if instrument.kind == "gauge":
            prometheus.observe(name, lambda attributes=attributes: [(1.0, attributes)])
        else:
            prometheus.record(name, 1, attributes)
    there = series(scrape(prometheus))
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 20
    used = set()
    for query in queries:
        names = [word for word in re.findall(r"[a-z_]+_[a-z_]+", query) if word in there]
        assert len(names) == 1, query
        used.add(names[0])
        labels = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"\{(\w+)[!=]", query)
        wanted = {label.strip() for group in labels for label in group.split(",")}
        assert wanted <= there[names[0]] | {"instance", "le"}, query
    shown = {re.sub(r"_(bucket|count|total)$", "", name) for name in used}
    assert shown == {
        re.sub(r"_(bucket|count|sum|total|created)$", "", n) for n in there if n != "target_info"
    } - {n for n in there if n.startswith(("python_", "process_"))}
