"""The gate's MCP client against servers that answer oddly, over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from protocol.jsjson import loads
from services.tool_gate.credentials import Access
from services.tool_gate.failures import (
    AnswerInvalid,
    HttpStatus,
    Lost,
    RpcError,
    TimedOut,
    Unreachable,
    UpstreamFailure,
)
from services.tool_gate.upstream.opener import Opener
from tests.doubles.http import HttpDouble, serving
from tests.tool_gate.support import BOUND, until

INFO = {"name": "odd", "version": "1"}


class OddServer(HttpDouble):
    """A streamable-HTTP server with JSON answers; `answers` replaces the result of a method by what a test
    writes: a result, an exception's JSON-RPC error, or a function of the request and the wire."""

    def __init__(self, **answers):
        super().__init__()
        self.answers = answers
        self.messages = []

    async def serve(self, request, wire):
        if request.method != "POST":
            return await wire.answer(405)
        message = json.loads(request.body)
        self.messages.append(message)
        if "id" not in message:
            return await wire.answer(202)
        method = message["method"].replace("/", "_")
        answer = self.answers.get(method, DEFAULTS.get(method))
        if callable(answer):
            return await answer(message, wire)
        body = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
        return await wire.answer(200, json.dumps(body).encode(), {"mcp-session-id": "s1"})

    def sent(self, method):
        return [message for message in self.messages if message.get("method") == method]


DEFAULTS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": INFO},
    "tools_list": {"tools": []},
    "tools_call": {"content": []},
}


def raw(content, status=200, **headers):
    async def answer(message, wire):
        data = content.replace(b"$ID", json.dumps(message["id"]).encode())
        await wire.answer(status, data, {name.replace("_", "-"): value for name, value in headers.items()})

    return answer


@contextlib.asynccontextmanager
async def connected(double, *, request_s=BOUND, ended=None, opens=True):
    async with serving(double) as server:
        declaration = {"type": "streamable-http", "url": f"{server.origin}/mcp"}
        connection = Opener(request_s=request_s).connection(
            declaration, Access({}, True), lambda _: ended.set() if ended else None
        )
        try:
            if opens:
                await connection.open()
            yield connection
        finally:
            async with asyncio.timeout(BOUND):
                await connection.close()


async def test_it_introduces_itself_as_the_original_does_and_names_the_version_from_then_on():
    double = OddServer()
    async with connected(double) as connection:
        await connection.request("tools/list", None)
        await connection.request("tools/call", {"name": "x", "arguments": {}})
    assert [message["method"] for message in double.messages] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ]
    first = double.messages[0]
    assert first["params"] == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "nylorun-runtime", "version": "0.6.0"},
    }
    assert "params" not in double.messages[2]
    assert double.messages[3]["params"] == {"name": "x", "arguments": {}}
    posts = [request for request in double.requests if request.method == "POST"]
    assert "mcp-protocol-version" not in posts[0].headers
    assert {request.headers["mcp-protocol-version"] for request in posts[1:]} == {"2025-06-18"}
    assert {request.headers["mcp-session-id"] for request in posts[1:]} == {"s1"}
    assert all(request.method != "DELETE" for request in double.requests)


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07"])
async def test_versions_that_are_spoken(version):
    double = OddServer(initialize={"protocolVersion": version, "capabilities": {}, "serverInfo": INFO})
    async with connected(double) as connection:
        assert connection.usable


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": INFO}, "version '1999-01-01'"),
        ({"protocolVersion": 1, "capabilities": {}, "serverInfo": INFO}, "protocolVersion is not a string"),
        ({"protocolVersion": "2025-06-18", "capabilities": {}}, "serverInfo has no name"),
        ({"protocolVersion": "2025-06-18", "serverInfo": INFO}, "capabilities is not an object"),
    ],
)
async def test_a_handshake_that_is_not_mcp_s_is_refused_by_name(result, says):
    async with connected(OddServer(initialize=result), opens=False) as connection:
        with pytest.raises(AnswerInvalid) as refused:
            await connection.open()
        assert says in refused.value.message


@pytest.mark.parametrize(
    ("answer", "failure", "says"),
    [
        (raw(b"{"), AnswerInvalid, "no JSON-RPC message"),
        (raw(b'{"jsonrpc": "2.0", "id": $ID, "result": [1]}'), AnswerInvalid, "no JSON-RPC message"),
        (raw(b"hello", content_type="text/plain"), AnswerInvalid, "answers no JSON"),
        (raw(b"", 202), Lost, "gave no answer"),
        (raw(b"", 500), HttpStatus, "HTTP status 500"),
        (raw(b"", 401), HttpStatus, "wants a credential"),
        (
            raw(b'{"jsonrpc": "2.0", "id": $ID, "error": {"code": -32602, "message": "no such tool"}}'),
            RpcError,
            "MCP error -32602: no such tool",
        ),
        (
            raw(b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "what?"}}', 400),
            RpcError,
            "MCP error -32700: what?",
        ),
        (raw(b"id: 1\n\n", content_type="text/event-stream"), Lost, "answer broke off"),
        (raw(b"data: {}\n\n", content_type="text/event-stream"), AnswerInvalid, "no JSON-RPC message"),
    ],
)
async def test_odd_answers_fail_their_own_request_and_nothing_else(answer, failure, says):
    double = OddServer(tools_call=answer)
    async with connected(double) as connection:
        with pytest.raises(UpstreamFailure) as failed:
            await connection.request("tools/call", {"name": "x", "arguments": {}})
        assert type(failed.value) is failure
        assert says in failed.value.message
        assert await connection.request("tools/list", None) == {"tools": []}
        assert connection.usable


async def test_a_result_comes_as_the_server_wrote_it():
    text = b'{"content": [], "_meta": {"a": 1.0, "b": 1e2, "c": 12345678901234567890}, "x": [null, {"2": 1, "1": 2}]}'
    double = OddServer(tools_call=raw(b'{"jsonrpc": "2.0", "id": $ID, "result": ' + text + b"}"))
    async with connected(double) as connection:
        result = await connection.request("tools/call", {"name": "x", "arguments": {}})
    assert result == json.loads(text)
    assert loads(json.dumps(result)) == loads(text.decode())


async def test_an_id_that_comes_back_as_text_is_understood():
    double = OddServer(tools_call=raw(b'{"jsonrpc": "2.0", "id": "$ID", "result": {"content": []}}'))
    async with connected(double) as connection:
        assert await connection.request("tools/call", {"name": "x", "arguments": {}}) == {"content": []}


async def silent(message, wire):
    await asyncio.Event().wait()


async def test_a_silent_server_ends_a_request_in_time_is_told_and_frees_its_connection():
    double = OddServer(tools_call=silent)
    async with connected(double, request_s=0.3) as connection:
        with pytest.raises(TimedOut, match=r"did not answer tools/call within 0\.3 s"):
            await connection.request("tools/call", {"name": "x", "arguments": {}})
        await until(lambda: double.sent("notifications/cancelled"))
        [notice] = double.sent("notifications/cancelled")
        assert notice["params"]["requestId"] == double.sent("tools/call")[0]["id"]
        assert isinstance(notice["params"]["reason"], str)
        assert await connection.request("tools/list", None) == {"tools": []}


async def test_a_silent_handshake_ends_in_time():
    async with connected(OddServer(initialize=silent), request_s=0.3, opens=False) as connection:
        with pytest.raises(TimedOut):
            await connection.open()


async def test_a_closed_connection_fails_its_requests_and_takes_no_more():
    ended = asyncio.Event()
    double = OddServer(tools_call=silent)
    async with connected(double, ended=ended) as connection:
        call = asyncio.create_task(connection.request("tools/call", {"name": "x", "arguments": {}}))
        await until(lambda: double.sent("tools/call"))
        await connection.close()
        with pytest.raises(Lost):
            await call
        assert ended.is_set()
        with pytest.raises(Unreachable):
            await connection.request("tools/list", None)


async def test_a_server_that_streams_more_than_an_event_may_hold_fails_its_request(monkeypatch):
    monkeypatch.setattr("services.tool_gate.upstream.connection.ANSWER_BYTES", 1000)
    large = b"data: " + b"x" * 2000 + b"\n\n"
    double = OddServer(tools_call=raw(large, content_type="text/event-stream"))
    async with connected(double) as connection:
        with pytest.raises(Lost):
            await connection.request("tools/call", {"name": "x", "arguments": {}})
        assert await connection.request("tools/list", None) == {"tools": []}


async def test_a_hundred_requests_at_once_are_told_apart():
    async def echo(message, wire):
        result = {"content": [], "n": message["params"]["arguments"]["n"]}
        await wire.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    async with connected(OddServer(tools_call=echo)) as connection:
        found = await asyncio.gather(
            *(connection.request("tools/call", {"name": "x", "arguments": {"n": n}}) for n in range(100))
        )
    assert [result["n"] for result in found] == list(range(100))
