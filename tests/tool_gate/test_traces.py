"""The trace of a call: in through a header, out in the log, in spans and, when asked for, to the server."""

from __future__ import annotations

import contextlib

import pytest

from services.common.logs import trace_context
from services.common.telemetry import Telemetry
from tests.tool_gate.fakes import FakeServers
from tests.tool_gate.support import BASE, FAR, gate, manifest

DOCUMENT = manifest({"name": "far", "type": "sse", "url": "https://far.example/sse"})
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
OTHER = f"00-{'c' * 32}-{'d' * 16}-01"


class Spans(Telemetry):
    """Keeps what would be told."""

    enabled = True

    def __init__(self):
        self.seen = []
        self.flushed = 0

    @contextlib.contextmanager
    def _made(self, kind, name, attributes, parent):
        self.seen.append((kind, name, dict(attributes), parent))
        yield f"00-{'a' * 32}-{len(self.seen):016x}-01"

    def span(self, name, attributes, parent=None):
        return self._made("client", name, attributes, parent)

    def incoming(self, name, attributes, parent):
        return self._made("server", name, attributes, parent)

    async def flush(self):
        self.flushed += 1


def asked(servers):
    return [
        params for upstream in servers.made for method, params in upstream.asked if method == "tools/call"
    ]


async def call(running, effect, trace=None):
    body = {"server": FAR, "effectId": effect, "name": "echo", "arguments": {}}
    traced = {} if trace is None else {"traceparent": trace}
    return await running.client.post(
        f"{BASE}/tool-calls", body, headers={"Idempotency-Key": effect, **traced}
    )


@pytest.mark.parametrize("told", [True, False])
async def test_a_server_is_told_the_trace_of_a_call_only_when_that_is_switched_on(tmp_path, told):
    servers = FakeServers()
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load, traceparent=told) as running:
        await call(running, "e1")
        await call(running, "e2", TRACE)
    first, second = asked(servers)
    assert "_meta" not in first
    assert second.get("_meta") == ({"traceparent": TRACE} if told else None)


async def test_the_trace_is_no_part_of_a_call_that_is_sent_again(tmp_path):
    servers = FakeServers()
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load, traceparent=True) as running:
        first, again = [await call(running, "e1", trace) for trace in (TRACE, OTHER)]
    assert first.status == 200
    assert first.body == again.body
    assert len(asked(servers)) == 1


@pytest.mark.parametrize(
    "header", ["", "00-xyz", f"01-{'a' * 32}-{'b' * 16}-01", TRACE + "-more", "a" * 8000]
)
async def test_what_is_no_trace_is_left_out(tmp_path, header):
    spans = Spans()
    async with gate(tmp_path, DOCUMENT, load_connector=FakeServers().load, telemetry=spans) as running:
        await running.client.connect(headers={"traceparent": header})
    assert [parent for kind, _, _, parent in spans.seen if kind == "server"] == [None]


async def test_spans_join_the_caller_s_and_name_no_effect_and_no_content(tmp_path):
    spans = Spans()
    async with gate(tmp_path, DOCUMENT, load_connector=FakeServers().load, telemetry=spans) as running:
        await running.client.call("echo", {"secret": "argument"}, effect="e:1")
        await running.client.cancel("e:1", headers={"traceparent": TRACE})
        await running.client.get("/no/such/path")
    call, tool, cancel, unknown = spans.seen
    assert call[:2] == ("server", "POST /nylorun/v1/tool-calls")
    assert tool[:2] == ("client", "tools/call echo")
    assert tool[2]["nylorun.effect.id"] == "e:1"
    assert tool[3] == f"00-{'a' * 32}-{1:016x}-01"
    assert cancel[1] == "POST /nylorun/v1/tool-calls/{key}/cancel"
    assert cancel[3] == TRACE
    assert unknown[1] == "GET unknown"
    assert "argument" not in str(spans.seen)
    assert spans.flushed == 1
    assert trace_context.get() is None
