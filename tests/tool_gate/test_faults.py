"""The gate with its faults switched on: strict, and as broken as a test asks for."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from services.tool_gate.faults import Faults
from tests.tool_gate.fakes import FakeServers
from tests.tool_gate.support import BASE, FAR, SESSION, gate, manifest, token

DOCUMENT = manifest({"name": "far", "type": "sse", "url": "https://far.example/sse"})


@pytest.fixture
async def servers():
    return FakeServers()


@pytest.fixture
async def it(tmp_path, servers):
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load, faults=True) as gated:
        yield gated


@pytest.mark.parametrize(
    ("body", "headers", "says"),
    [
        ({"server": {"sessionId": SESSION, **FAR}}, {}, "sessionId is not in the contract"),
        ({"server": FAR, "more": 1}, {}, "more is not in the contract"),
        ({"server": {**FAR, "more": 1}}, {}, "more is not in the contract"),
        ({"server": FAR}, {"Content-Type": "text/json"}, "Content-Type"),
        ({"server": FAR}, {"Nylorun-Tenant": "tn_dev"}, "no Nylorun-Tenant"),
    ],
)
async def test_what_is_not_in_the_contract_is_refused(it, body, headers, says):
    answer = await it.client.post(f"{BASE}/mcp/connect", body, headers=headers)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert says in answer.message


async def test_a_call_without_a_key_is_refused(it):
    answer = await it.client.call("echo", key=None)
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_requests_are_remembered_without_their_tokens(it):
    await it.client.call("echo", {"a": 1}, effect="t:0:x")
    await it.client.cancel("t:0:x")
    seen = (await it.client.get("/faults")).body
    assert [request["path"] for request in seen["requests"]] == [
        f"{BASE}/tool-calls",
        f"{BASE}/tool-calls/t%3A0%3Ax/cancel",
    ]
    first = seen["requests"][0]
    assert first["body"] == {"server": FAR, "effectId": "t:0:x", "name": "echo", "arguments": {"a": 1}}
    assert (first["key"], first["tokenId"], first["epoch"]) == ("t:0:x", f"{SESSION}/1", 1)
    assert token().split(".")[2] not in json.dumps(seen)
    assert (await it.client.post("/faults/clear")).status == 404
    async with it.client.http.delete(f"{it.url}/faults") as cleared:
        assert cleared.status == 204
    assert (await it.client.get("/faults")).body["requests"] == []


@pytest.mark.parametrize("at", ["received", "settled"])
async def test_a_cut_ends_the_connection_and_the_next_request_is_served(it, servers, at):
    await it.client.fault(route="tool-calls", at=at, act="cut")
    with pytest.raises(aiohttp.ClientError):
        await it.client.call("echo")
    assert (await it.client.call("echo")).body["ok"]
    # Before the call nothing ran, after it the answer was there: once, either way.
    assert sum(len(upstream.asked) for upstream in servers.made) == 1


async def test_half_an_answer_comes_with_the_length_of_the_whole(it):
    await it.client.fault(route="list", at="settled", act="half")
    with pytest.raises(aiohttp.ClientPayloadError):
        await it.client.list_page()


async def test_a_refusal_and_an_uncertain_answer_are_given_as_often_as_asked_for(it, servers):
    await it.client.fault(route="tool-calls", at="received", act="refuse", times=2)
    await it.client.fault(route="connect", at="received", act="refuse", status=401, code="gate_unauthorized")
    for _ in range(2):
        answer = await it.client.call("echo")
        assert (answer.status, answer.code) == (409, "run_stale")
    assert (await it.client.connect()).status == 401
    await it.client.fault(route="tool-calls", at="received", act="uncertain", effectId="e2")
    assert (await it.client.call("echo")).body["ok"]
    assert (await it.client.call("echo", effect="e2")).body["error"]["uncertain"]
    assert [len(upstream.asked) for upstream in servers.made] == [1]


@pytest.mark.parametrize("at", ["received", "written", "answered", "settled"])
async def test_a_call_is_held_where_it_was_asked_for(it, servers, at):
    await it.client.fault(route="tool-calls", at=at, act="hold")
    call = asyncio.create_task(it.client.call("echo"))

    async def held():
        while (await it.client.get("/faults")).body["held"] != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async with asyncio.timeout(20):
        await held()
    asked = sum(len(upstream.asked) for upstream in servers.made)
    assert asked == (0 if at in ("received", "written") else 1)
    assert (await it.client.post("/faults/release")).status == 204
    assert (await call).body["ok"]


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"route": "tool-calls", "at": "received", "act": "explode"},
        {"route": "nowhere", "at": "received", "act": "cut"},
        {"route": "tool-calls", "at": "written", "act": "cut"},
        {"route": "list", "at": "answered", "act": "hold"},
        {"route": "list", "at": "received", "act": "half"},
        {"route": "list", "at": "received", "act": "cut", "more": 1},
        [],
    ],
)
async def test_a_fault_that_can_not_be_is_refused(it, fault):
    answer = await it.client.post("/faults", fault)
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_without_the_switch_nothing_strikes_and_nothing_is_remembered():
    faults = Faults()
    faults.add({"route": "connect", "at": "received", "act": "die"})
    await faults.strike("connect", "received")
    faults.seen({"path": "/"})
    assert not faults.requests
