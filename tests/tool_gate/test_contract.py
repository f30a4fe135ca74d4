"""The contract's routes: who gets in, in which order requests are checked, and what refusals say."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.tool_gate.fakes import FakeServers
from tests.tool_gate.support import (
    BASE,
    BOUND,
    FAR,
    KEY,
    OTHER,
    SESSION,
    Core,
    gate,
    jwks,
    manifest,
    token,
    until,
)

DOCUMENT = manifest({"name": "far", "type": "streamable-http", "url": "https://far.example/mcp"})
LIVE_ROUTES = ("mcp/connect", "mcp/list", "tool-calls")


def body_of(route: str, **more: Any) -> dict[str, Any]:
    call = {"effectId": "e1", "name": "echo", "arguments": {}} if route == "tool-calls" else {}
    return {"server": FAR, **call, **more}


@pytest.fixture
async def servers():
    return FakeServers()


@pytest.fixture
async def it(tmp_path, servers):
    async with gate(tmp_path, DOCUMENT, load_connector=servers.load) as gated:
        yield gated


async def test_connect_answers_null_list_the_tools_and_close_nothing(it, servers):
    assert (await it.client.connect()).body == {"ok": True, "result": None}
    page = (await it.client.list_page()).body
    assert page == {"ok": True, "result": {"tools": [{"name": "echo"}], "nextCursor": "2"}}
    assert servers.made[0].asked[-1] == ("tools/list", None)
    await it.client.list_page("2")
    assert servers.made[0].asked[-1] == ("tools/list", {"cursor": "2"})
    closed = await it.client.close()
    assert (closed.status, closed.body) == (204, None)
    await until(lambda: servers.made[0].closed)


async def test_a_call_s_result_is_the_server_s_own_document(it, servers):
    odd = {"content": [], "isError": False, "more": {"1": 1.0, "a": [None, 1e21, 0.1]}, "_meta": {"x": 1}}
    servers.result = odd
    answer = await it.client.call("echo", {"a": [1, {"b": None}]})
    assert answer.body == {"ok": True, "result": odd}
    assert servers.made[0].asked == [("tools/call", {"name": "echo", "arguments": {"a": [1, {"b": None}]}})]


@pytest.mark.parametrize("route", [*LIVE_ROUTES, "mcp/close"])
async def test_a_missing_or_malformed_token_is_refused(it, route):
    for headers in (
        {},
        {"Authorization": "Basic x"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer not.a.token"},
        {"Authorization": "Bearer " + "x" * 5_000},
    ):
        answer = await it.client.post(f"{BASE}/{route}", body_of(route), bearer=None, headers=headers)
        assert (answer.status, answer.code) == (401, "gate_unauthorized")


@pytest.mark.parametrize(
    "made",
    [
        {"exp": 1},
        {"exp": None},
        {"aud": "somebody"},
        {"sub": None},
        {"sub": ""},
        {"epc": None},
        {"epc": "1"},
        {"epc": True},
        {"typ": "JWT"},
        {"key": ec.generate_private_key(ec.SECP256R1())},
        {"kid": "another"},
    ],
)
async def test_a_token_that_is_expired_foreign_or_no_run_token_is_refused(it, made):
    answer = await it.client.connect(bearer=token(**made))
    assert (answer.status, answer.code) == (401, "gate_unauthorized")


async def test_an_unsigned_token_and_one_signed_with_the_public_key_as_a_secret_are_refused(it):
    claims = {"aud": "nylorun-gates", "sub": SESSION, "epc": 1, "exp": 2**32}
    header = {"typ": "nylorun-run+jwt", "kid": "k1"}
    unsigned = jwt.encode(claims, None, "none", headers=header)
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({**header, "alg": "HS256"}, claims)
    ]
    signature = hmac.new(public, b".".join(parts), "sha256").digest()
    keyed = b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()
    for forged in (unsigned, keyed):
        assert (await it.client.connect(bearer=forged)).status == 401


async def test_a_key_that_the_core_made_since_is_asked_for(it, monkeypatch):
    monkeypatch.setattr("services.tool_gate.tokens.REFRESH_S", 0.0)
    assert (await it.client.connect()).status == 200
    newer = ec.generate_private_key(ec.SECP256R1())
    it.core.keys = {"keys": [*jwks(KEY)["keys"], *jwks(newer, "k2")["keys"]]}
    assert (await it.client.connect(bearer=token(key=newer, kid="k2"))).status == 200
    assert (await it.client.connect()).status == 200


async def test_unknown_keys_do_not_make_the_gate_ask_again_and_again(it):
    for _ in range(5):
        assert (await it.client.connect(bearer=token(kid="nobody's"))).status == 401
    assert it.core.asked.count("/.well-known/jwks.json") == 1


@pytest.mark.parametrize("route", LIVE_ROUTES)
@pytest.mark.parametrize(
    "now", [{"epoch": 2}, {"epoch": 0}, {"status": "completed"}, {"status": "cancelled"}, None]
)
async def test_a_token_whose_lease_is_over_is_stale(it, route, now):
    if now is None:
        del it.core.sessions[SESSION]
    else:
        it.core.sessions[SESSION].update(now)
    answer = await it.client.post(f"{BASE}/{route}", body_of(route))
    assert (answer.status, answer.code) == (409, "run_stale")


async def test_a_stale_token_still_closes_and_cancels(it):
    it.core.sessions[SESSION]["status"] = "completed"
    assert (await it.client.close()).status == 204
    assert (await it.client.cancel("nothing-that-runs")).status == 204


@pytest.mark.parametrize("route", [*LIVE_ROUTES, "mcp/close"])
async def test_a_body_that_names_another_session_is_forbidden(it, route):
    body = body_of(route)
    body["server"] = {"sessionId": OTHER, **FAR}
    answer = await it.client.post(f"{BASE}/{route}", body)
    assert (answer.status, answer.code) == (403, "gate_forbidden")
    body["server"] = {"sessionId": SESSION, **FAR}
    assert (await it.client.post(f"{BASE}/{route}", body)).status in (200, 204)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("mcp/connect", b"{"),
        ("mcp/connect", b"\xff"),
        ("mcp/connect", []),
        ("mcp/connect", {}),
        ("mcp/connect", {"server": "far"}),
        ("mcp/connect", {"server": {"capabilityId": "cap"}}),
        ("mcp/connect", {"server": {**FAR, "serverName": ""}}),
        ("mcp/connect", {"server": {**FAR, "agentId": ""}}),
        ("mcp/connect", {"server": {**FAR, "agentId": None}}),
        ("mcp/connect", {"server": {**FAR, "serverName": "x" * 513}}),
        ("mcp/connect", {"server": {**FAR, "serverName": "\ud800"}}),
        ("mcp/list", body_of("mcp/list", cursor="")),
        ("mcp/list", body_of("mcp/list", cursor=1)),
        ("tool-calls", body_of("tool-calls", arguments=[])),
        ("tool-calls", body_of("tool-calls", arguments=None)),
        ("tool-calls", body_of("tool-calls", name="")),
        ("tool-calls", body_of("tool-calls", effectId="")),
        ("tool-calls", body_of("tool-calls", effectId="e2")),
    ],
)
async def test_a_body_that_is_not_the_contract_s_is_invalid(it, servers, route, body):
    headers = {"Idempotency-Key": "e1"} if route == "tool-calls" else {}
    answer = await it.client.post(f"{BASE}/{route}", body, headers=headers)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert servers.made == []


async def test_a_body_above_8_mib_is_invalid_and_one_of_8_mib_is_not(it):
    empty = len(json.dumps(body_of("tool-calls", arguments={"a": ""})))
    for size, status in ((8 * 1024 * 1024, 200), (8 * 1024 * 1024 + 1, 400)):
        body = json.dumps(body_of("tool-calls", arguments={"a": "x" * (size - empty)})).encode()
        assert len(body) == size
        answer = await it.client.post(f"{BASE}/tool-calls", body)
        assert answer.status == status


@pytest.mark.parametrize("levels", [200, 201])
async def test_arguments_nest_up_to_200_levels(it, levels):
    deep: Any = 1
    for _ in range(levels):
        deep = {"a": deep}
    answer = await it.client.call("echo", deep)
    assert answer.status == (200 if levels == 200 else 400)


async def test_a_foreign_tenant_is_invalid_and_the_token_s_own_is_not(it):
    assert (await it.client.connect(headers={"Nylorun-Tenant": "tn_dev"})).status == 200
    answer = await it.client.connect(headers={"Nylorun-Tenant": "tn_other"})
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_a_host_that_was_not_allowed_is_rejected_before_anything_else(it):
    answer = await it.client.connect(bearer=None, headers={"Host": "evil.example:4100"})
    assert answer.status == 421


async def test_checks_are_made_in_the_contract_s_order(it):
    it.core.sessions[SESSION]["epoch"] = 9
    assert (await it.client.post(f"{BASE}/mcp/connect", b"{", bearer="x")).status == 401
    assert (await it.client.post(f"{BASE}/mcp/connect", b"{")).status == 409
    it.core.sessions[SESSION]["epoch"] = 1
    headers = {"Nylorun-Tenant": "tn_other"}
    assert "Tenant" in (await it.client.post(f"{BASE}/mcp/connect", b"{", headers=headers)).message
    assert "JSON" in (await it.client.post(f"{BASE}/mcp/connect", b"{")).message


async def test_what_is_not_there_says_what_the_gate_is_for(it):
    answer = await it.client.post("/nylorun/v1/model-calls", {})
    assert (answer.status, answer.code) == (404, "not_found")
    assert "no models" in answer.message
    wrong = await it.client.get(f"{BASE}/mcp/connect")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    assert (await it.client.get("/faults")).status == 404


async def test_health_and_readiness(it):
    assert (await it.client.get("/health")).body == {"status": "ok"}
    assert (await it.client.get("/ready")).body == {"ready": True}


async def test_a_core_that_is_away_makes_requests_unavailable_and_starts_nothing(it, servers):
    assert (await it.client.connect()).status == 200
    it.core.down = True
    answer = await it.client.call("echo")
    assert (answer.status, answer.code) == (503, "unavailable")
    assert servers.made[0].asked == []
    it.core.down = False
    assert (await it.client.call("echo")).status == 200


async def test_the_core_s_bearer_goes_along_and_its_refusal_is_told(tmp_path, servers):
    core = Core(bearer="secret")
    async with gate(tmp_path, DOCUMENT, core=core, core_token="secret", load_connector=servers.load) as it:
        assert (await it.client.connect()).status == 200
    async with gate(tmp_path, DOCUMENT, core=core, core_token="wrong", load_connector=servers.load) as it:
        answer = await it.client.connect()
        assert answer.status == 503
        assert "status 401" in answer.message


async def test_a_session_s_manifest_is_asked_for_once(it):
    await it.client.connect()
    await it.client.connect()
    assert sum(path.startswith("/v1/manifests/") for path in it.core.asked) == 1
    assert it.core.asked.count(f"/v1/sessions/{SESSION}") == 2


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"capabilityId": "cap", "serverName": "near"}, "stdio"),
        ({"capabilityId": "cap", "serverName": "none"}, "not declared"),
        ({"capabilityId": "other", "serverName": "far"}, "not declared"),
        ({"agentId": "helper", **FAR}, "not declared"),
    ],
)
async def test_servers_that_are_not_for_the_gate_are_an_answer(tmp_path, servers, server, says):
    document = manifest(
        {"name": "far", "type": "sse", "url": "https://far.example/sse"},
        {"name": "near", "type": "stdio", "command": "x"},
    )
    async with gate(tmp_path, document, load_connector=servers.load) as it:
        for answer in (await it.client.connect(server), await it.client.call("echo", server=server)):
            assert (answer.status, answer.body["ok"]) == (200, False)
            assert says in answer.message
        assert servers.made == []


async def test_a_call_without_a_key_ends_with_its_client_and_is_not_kept(it, servers):
    servers.hold = asyncio.Event()
    call = asyncio.create_task(it.client.call("echo", key=None))
    await until(lambda: servers.made and servers.made[0].asked)
    call.cancel()
    await until(lambda: servers.made[0].cancelled)
    servers.hold.set()
    assert (await it.client.call("echo", key=None)).body["ok"]
    assert (await it.client.call("echo", key=None)).body["ok"]
    assert len(servers.made[0].asked) == 3


async def test_a_fault_of_the_gate_s_own_says_nothing_of_itself(it, servers):
    servers.result = RuntimeError("a secret")
    answer = await it.client.list_page()
    assert (answer.status, answer.code) == (500, "internal")
    assert "secret" not in json.dumps(answer.body)


async def test_a_body_that_does_not_arrive_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("services.tool_gate.app.BODY_S", 0.05)
    async with gate(tmp_path, manifest(), load_connector=FakeServers().load) as running:
        host, port = running.url.removeprefix("http://").split(":")
        async with asyncio.timeout(BOUND):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {BASE}/mcp/connect HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 50\r\n"
                f'Authorization: Bearer {token()}\r\n\r\n{{"server"'.encode()
            )
            status = await reader.readline()
            writer.close()
    assert status.split()[1] == b"408"
