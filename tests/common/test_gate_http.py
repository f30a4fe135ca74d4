"""Posts to a gates service: what is known of a request that does not come back."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from services.common import metrics, telemetry
from services.common.gate_http import (
    Answered,
    GateAnswerTooLarge,
    GateHttp,
    GateLost,
    GateSilent,
    GateUnreachable,
    component,
)
from services.common.logs import trace_context
from services.common.telemetry import Telemetry
from tests.common.support import BOUND_S
from tests.doubles.http import HttpDouble, serving


class Gate(HttpDouble):
    def __init__(self, act=None, early=None):
        super().__init__()
        self.act, self.early = act, early

    async def before_body(self, request, wire):
        if self.early is None:
            return True
        await self.early(request, wire)
        return False

    async def serve(self, request, wire):
        if self.act is not None:
            return await self.act(request, wire)
        return await wire.answer(200, request.body[:10])


async def post(gate, body=b"{}", **settings):
    http = GateHttp(f"{gate.origin}/a/path?x=1", **{"silence_s": BOUND_S, **settings})
    try:
        async with asyncio.timeout(BOUND_S):
            return await http.post("/nylorun/v1/x", body, {"Content-Type": "application/json"})
    finally:
        await http.close()


async def test_a_request_carries_the_trace_that_is_served_and_none_where_there_is_none():
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    async with serving(Gate()) as gate:
        await post(gate)
        token = trace_context.set(trace)
        try:
            await post(gate)
        finally:
            trace_context.reset(token)
    assert [request.headers.get("traceparent") for request in gate.requests] == [None, trace]


async def test_with_telemetry_a_request_has_a_span_that_it_carries_and_a_time(monkeypatch):
    class Spans(Telemetry):
        enabled = True

        @contextlib.contextmanager
        def span(self, name, attributes, parent=None):
            noted.append((name, parent, attributes))
            yield "the span's own"

    class Times(metrics.Metrics):
        enabled = True

        def record(self, name, value, attributes=None):
            times.append((name, dict(attributes)))

    noted, times = [], []
    monkeypatch.setattr(telemetry, "current", Spans())
    monkeypatch.setattr(metrics, "current", Times())
    async with serving(Gate()) as gate:
        await post(gate)
        url = gate.origin
    nobody = GateHttp(url)
    with pytest.raises(GateUnreachable):
        await nobody.post("/x", b"", {})
    await nobody.close()
    common = {"http.request.method": "POST", "server.address": "127.0.0.1"}
    assert gate.requests[0].headers["traceparent"] == "the span's own"
    assert times == [
        ("http.client.request.duration", {**common, "http.response.status_code": "200"}),
        ("http.client.request.duration", {**common, "error.type": "GateUnreachable"}),
    ]
    assert [(name, parent, attributes) for name, parent, attributes in noted] == [
        ("POST", None, attributes) for _, attributes in times
    ]


async def reset(request, wire):
    wire.reset()


async def silent(request, wire):
    await wire.gone.wait()


async def half(request, wire):
    await wire.answer(200, b"{", length=10)
    wire.close()


async def test_an_answer_comes_whole_from_the_origin_alone_on_a_connection_of_its_own():
    async with serving(Gate()) as gate:
        assert await post(gate, b'{"a": 1}') == Answered(200, b'{"a": 1}')
        [request] = gate.requests
        assert request.target == "/nylorun/v1/x"
        assert request.headers == {
            "host": gate.origin.removeprefix("http://"),
            "content-type": "application/json",
            "content-length": "8",
            "connection": "close",
        }


async def test_every_status_is_an_answer_and_redirects_are_not_followed():
    async def redirect(request, wire):
        await wire.answer(307, b"", {"location": "/elsewhere"})

    async with serving(Gate(redirect)) as gate:
        assert (await post(gate)).status == 307
        assert len(gate.requests) == 1


@pytest.mark.parametrize("act", [reset, half])
async def test_after_the_whole_request_a_missing_answer_is_lost(act):
    async with serving(Gate(act)) as gate:
        with pytest.raises(GateLost):
            await post(gate)


async def test_a_closed_port_and_a_request_that_was_cut_were_never_taken():
    async with serving(Gate(early=reset)) as gate:
        with pytest.raises(GateUnreachable):
            await post(gate, b"x" * 16_000_000)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    http = GateHttp(closed)
    with pytest.raises(GateUnreachable):
        await http.post("/x", b"{}", {})
    await http.close()


@pytest.mark.parametrize("handed_over", [True, False])
async def test_silence_is_told_apart_by_what_was_handed_over(handed_over):
    gate = Gate(silent) if handed_over else Gate(early=lambda request, wire: asyncio.sleep(3600))
    async with serving(gate):
        with pytest.raises(GateSilent) as caught:
            await post(gate, b"{}" if handed_over else b"x" * 30_000_000, silence_s=0.3)
    assert caught.value.handed_over is handed_over


@pytest.mark.parametrize(("limit", "fits"), [(10, True), (9, False)])
async def test_an_answer_has_at_most_so_many_bytes(limit, fits):
    async with serving(Gate()) as gate:
        if fits:
            assert (await post(gate, b"0123456789", max_answer_bytes=limit)).body == b"0123456789"
        else:
            with pytest.raises(GateAnswerTooLarge):
                await post(gate, b"0123456789", max_answer_bytes=limit)


async def test_a_request_that_is_given_up_closes_its_connection():
    gone = asyncio.Event()

    async def watch(request, wire):
        await wire.gone.wait()
        gone.set()

    async with serving(Gate(watch)) as gate:
        call = asyncio.create_task(post(gate))
        async with asyncio.timeout(BOUND_S):
            while not gate.requests:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.005)
            call.cancel()
            await gone.wait()


@pytest.mark.parametrize("act", [None, reset, silent])
async def test_what_nobody_waits_for_never_fails_and_ends_soon(act, monkeypatch):
    monkeypatch.setattr("services.common.gate_http.QUICK_S", 0.2)
    async with serving(Gate(act)) as gate:
        http = GateHttp(gate.origin)
        async with asyncio.timeout(BOUND_S):
            await http.tell("/x", {"A": "b"})
            await http.tell("/x", {"A": "b"}, b"{}")
        await http.close()
        assert [request.headers["content-length"] for request in gate.requests] == ["0", "2"]


async def test_an_idle_connection_is_probed():
    probed = []

    async def look(request, wire):
        await wire.answer(200, b"")

    async with serving(Gate(look)) as gate:
        http = GateHttp(gate.origin)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "asyncio.trsock.TransportSocket.setsockopt", lambda self, *given: probed.append(given)
            )
            await http.post("/x", b"{}", {})
        await http.close()
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in probed
    assert (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30) in probed


def test_ids_are_encoded_as_a_browser_does_it():
    assert component("t:0:tool:a b/ü*()'!~") == "t%3A0%3Atool%3Aa%20b%2F%C3%BC*()'!~"
