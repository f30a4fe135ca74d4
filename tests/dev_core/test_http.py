"""The HTTP API: what it takes, what it refuses, and what its refusals say."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from services.dev_core.harness import requests
from tests.dev_core.support import BOUND_S, HELPER, PLAIN, CoreClient, eventually, running_core, tool


async def test_an_agent_is_put_replaced_and_read(core: CoreClient) -> None:
    made = await core.put("/v1/agents/plain", {"manifest": PLAIN})
    assert made.status == 201
    assert "actions" not in made.body
    url = "http://127.0.0.1:1/actions"
    replaced = await core.put("/v1/agents/plain", {"manifest": HELPER, "actions": {"url": url}})
    assert replaced.status == 200
    assert replaced.body["manifestHash"] != made.body["manifestHash"]
    assert replaced.body["createdAt"] == made.body["createdAt"]
    read = await core.get("/v1/agents/plain")
    assert (read.body["manifest"], read.body["actions"]) == (HELPER, {"url": url})
    listed = await core.get("/v1/agents")
    assert [agent["id"] for agent in listed.body["agents"]] == ["plain"]


async def test_a_manifest_is_read_by_its_hash_after_its_agent_was_replaced(core: CoreClient) -> None:
    made = await core.put("/v1/agents/plain", {"manifest": PLAIN})
    await core.put("/v1/agents/plain", {"manifest": HELPER})
    read = await core.get(f"/v1/manifests/{made.body['manifestHash']}")
    assert (read.status, read.body) == (200, PLAIN)
    missing = await core.get("/v1/manifests/none")
    assert (missing.status, missing.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({}, "invalid", "manifest is missing"),
        ([], "invalid", "object"),
        ({"manifest": PLAIN, "more": 1}, "invalid", "more"),
        ({"manifest": 1}, "manifest_invalid", "manifest"),
        ({"manifest": {**PLAIN, "extra": 1}}, "manifest_invalid", "extra"),
        ({"manifest": {**PLAIN, "manifestSchemaVersion": 3}}, "manifest_invalid", "manifestSchemaVersion"),
        ({"manifest": {"kind": "workflow", "workflowSchemaVersion": 2}}, "manifest_invalid", "is required"),
        ({"manifest": PLAIN, "actions": {}}, "invalid", "url"),
        ({"manifest": PLAIN, "actions": {"url": "ftp://x/"}}, "invalid", "http"),
        ({"manifest": PLAIN, "actions": {"url": "nowhere"}}, "invalid", "actions.url"),
        ({"manifest": PLAIN, "actions": {"url": 1}}, "invalid", "actions.url"),
        ({"manifest": PLAIN, "actions": {"url": "http://x/", "key": 1}}, "invalid", "key"),
    ],
)
async def test_an_agent_that_can_not_be_is_refused_by_name(
    core: CoreClient, body: Any, code: str, says: str
) -> None:
    answer = await core.put("/v1/agents/x", body)
    assert (answer.status, answer.code) == (400, code)
    assert says in answer.body["error"]["message"]
    assert (await core.get("/v1/agents/x")).status == 404


async def test_what_the_engine_can_not_run_yet_may_be_put_all_the_same(core: CoreClient) -> None:
    hooks = [{"at": "before", "scope": "turn"}]
    manifest = {**PLAIN, "capabilities": [{"id": "rules", "type": "agent", "hooks": hooks}]}
    assert (await core.put("/v1/agents/x", {"manifest": manifest})).status == 201


async def test_large_and_deep_manifests_are_served_or_refused_in_bounded_time(core: CoreClient) -> None:
    many = {
        **PLAIN,
        "capabilities": [{"id": "c", "type": "agent", "tools": [tool(f"t{n}") for n in range(10_000)]}],
    }
    large = {**PLAIN, "metadata": {"text": "x" * 5_000_000}}
    deep: Any = {}
    for _ in range(850):
        deep = {"d": deep}
    async with asyncio.timeout(60):
        for manifest in (many, large, {**PLAIN, "metadata": deep}):
            assert (await core.put("/v1/agents/x", {"manifest": manifest})).status in (200, 201)
            health = await core.get("/health")
            assert health.status == 200
        await core.say(await core.session("x"))
        lease = await (await core.connect()).lease()
        assert lease.start["manifest"] == {**PLAIN, "metadata": deep}


async def test_sessions_are_made_listed_and_read(core: CoreClient) -> None:
    await core.agent()
    await core.agent(HELPER)
    ids = [
        await core.session("plain"),
        await core.session("helper", info={"a": 1}),
        await core.session("plain"),
    ]
    view = await core.view(ids[1])
    assert (view["status"], view["activeTurnId"], view["lastSeq"], view["info"]) == (
        "idle",
        None,
        0,
        {"a": 1},
    )
    first = await core.get("/v1/sessions?limit=2")
    assert [s["id"] for s in first.body["sessions"]] == [ids[2], ids[1]]
    rest = await core.get(f"/v1/sessions?limit=2&before={first.body['before']}")
    assert [s["id"] for s in rest.body["sessions"]] == [ids[0]]
    assert "before" not in rest.body
    helpers = await core.get("/v1/sessions?agentId=helper")
    assert [s["id"] for s in helpers.body["sessions"]] == [ids[1]]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid"),
        ({"agentId": 1}, 400, "invalid"),
        ({"agentId": "unknown"}, 404, "not_found"),
        ({"agentId": "\ud800"}, 404, "not_found"),
        ({"agentId": "plain", "info": []}, 400, "invalid"),
        ({"agentId": "plain", "title": "x"}, 400, "invalid"),
    ],
)
async def test_a_session_that_can_not_be_is_refused(
    core: CoreClient, body: Any, status: int, code: str
) -> None:
    await core.agent()
    answer = await core.post("/v1/sessions", body)
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "text",
        None,
        {"text": 1},
        {"text": "a", "content": []},
        {"text": "a", "metadata": []},
        {"data": 1, "metadata": {}},
        {"content": 1},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": "a", "more": 1}]},
        {"content": [{"type": "media", "mediaType": "", "reference": 1}]},
        {"content": ["a"]},
        {"kind": "approve"},
    ],
)
async def test_a_message_of_another_form_is_refused(core: CoreClient, body: Any) -> None:
    await core.agent()
    session_id = await core.session()
    data = json.dumps(body).encode()
    answer = await core.call("POST", f"/v1/sessions/{session_id}/messages", data)
    assert (answer.status, answer.code) == (400, "invalid")
    assert await core.status(session_id) == "idle"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"text":NaN}',
        b'{"text":"a"} x',
        b"[" * 1000 + b"]" * 1000,
        b'{"text":' + b"[" * 100_000,
    ],
)
async def test_a_body_that_is_not_json_is_refused(core: CoreClient, data: bytes) -> None:
    await core.agent()
    path = f"/v1/sessions/{await core.session()}/messages"
    answer = await core.call("POST", path, data)
    assert (answer.status, answer.code) == (400, "invalid")


async def test_a_body_that_is_missing_is_said_to_be_so(core: CoreClient) -> None:
    answer = await core.put("/v1/agents/x", b" ")
    assert (answer.status, answer.code) == (400, "invalid")
    assert "empty" in answer.body["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/sessions/none/artifacts?name=x"])
@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b'"' + b"x" * 1000 + b'"')], ids=["bad", "good"])
async def test_a_packed_body_is_refused_unread(core: CoreClient, path: str, data: bytes) -> None:
    answer = await core.call("POST", path, data, headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.code) == (400, "invalid")
    assert "Content-Encoding" in answer.body["error"]["message"]


async def test_a_body_over_16_mib_is_refused_and_one_of_10_mb_is_served(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    path = f"/v1/sessions/{session_id}/messages"
    too_large = await core.call("POST", path, b'{"text":"' + b"x" * (16 * 1024 * 1024) + b'"}')
    assert (too_large.status, too_large.code) == (413, "too_large")
    text = "x" * 10_000_000
    assert (await core.post(path, {"text": text})).status == 202
    lease = await (await core.connect()).lease()
    assert lease.start["checkpoint"]["input"] == text


async def test_a_turn_that_does_not_fit_a_frame_fails_with_that_reason(
    core: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_RESULT_BYTES", 100_000)
    await core.agent()
    session_id = await core.session()
    harness = await core.connect()
    await core.say(session_id)
    lease = await harness.lease()
    value = "x" * 60_000
    for name in ("one", "two"):
        await lease.model(value, name)
    await harness.ask("lease.release", {"runId": lease.id, "reason": "shutdown"})
    harness.start("lease", {})

    async def failed() -> bool:
        return await core.status(session_id) == "failed"

    await eventually(failed, "the turn fails")
    result = (await core.view(session_id))["lastTurn"]["result"]
    assert result["error"]["code"] == "start.too-large"
    other = await core.session()
    await core.say(other)
    await core.until(other, "run.started")


async def test_while_a_turn_is_under_way_a_message_is_refused_with_the_way_out(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    path = f"/v1/sessions/{session_id}/messages"
    await core.say(session_id)
    answer = await core.post(path, {"text": "more"})
    assert (answer.status, answer.code) == (409, "turn_running")
    lease = await (await core.connect()).lease()
    assert (await core.post(path, {"text": "more"})).code == "turn_running"
    await lease.output("turn.paused", status="paused", state=lease.state(), transcript=[], pending=[])
    answer = await core.post(path, {"text": "more"})
    assert (answer.status, answer.code) == (409, "turn_paused")
    assert "/approve" in answer.body["error"]["message"]
    assert (await core.types(session_id)).count("turn.started") == 1


async def paused(core: CoreClient) -> tuple[str, Any]:
    await core.agent()
    session_id = await core.session()
    await core.say(session_id)
    lease = await (await core.connect()).lease()
    calls = [
        {
            "callId": "c1",
            "toolName": "a",
            "status": "interaction",
            "interaction": {"id": "i1", "kind": "approval", "prompt": "?"},
        },
        {
            "callId": "c2",
            "toolName": "b",
            "status": "interaction",
            "interaction": {"id": "i2", "kind": "response", "prompt": "?"},
        },
        {"callId": "c3", "toolName": "c", "status": "settled", "result": {}},
    ]
    await lease.output("turn.paused", status="paused", state=lease.state(), transcript=[], pending=calls)
    return session_id, lease


@pytest.mark.parametrize(
    ("action", "body", "status", "code"),
    [
        ("approve", {"interactionId": "i2", "approved": True}, 400, "invalid"),
        ("respond", {"interactionId": "i1", "value": 1}, 400, "invalid"),
        ("approve", {"interactionId": "unknown", "approved": True}, 404, "not_found"),
        ("approve", {"interactionId": "i1"}, 400, "invalid"),
        ("approve", {"interactionId": "i1", "approved": "yes"}, 400, "invalid"),
        ("approve", {"interactionId": 1, "approved": True}, 400, "invalid"),
        ("respond", {"interactionId": "i2"}, 400, "invalid"),
        ("respond", {"interactionId": "i2", "value": 1, "more": 2}, 400, "invalid"),
    ],
)
async def test_an_answer_fits_an_open_interaction(
    core: CoreClient, action: str, body: Any, status: int, code: str
) -> None:
    session_id, _ = await paused(core)
    answer = await core.post(f"/v1/sessions/{session_id}/{action}", body)
    assert (answer.status, answer.code) == (status, code)
    assert await core.status(session_id) == "paused"


async def test_a_response_of_any_json_starts_the_next_segment_and_is_taken_once(core: CoreClient) -> None:
    session_id, lease = await paused(core)
    body = {"interactionId": "i2", "value": {"b": [None, 1.5], "1": "\ud800"}}
    assert (await core.post(f"/v1/sessions/{session_id}/respond", body)).status == 202
    again = await core.post(f"/v1/sessions/{session_id}/respond", body)
    assert (again.status, again.code) == (409, "not_paused")
    run = await lease.harness.lease()
    assert run.start["checkpoint"]["input"] == {"kind": "respond", **body}
    assert run.start["type"] == "approval.answer"
    assert (await core.types(session_id)).count("turn.resumed") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/sessions/unknown", 404),
        ("GET", "/v1/sessions/%ED%A0%80", 404),
        ("GET", "/v1/sessions/unknown/items", 404),
        ("GET", "/v1/sessions/unknown/events", 404),
        ("GET", "/v1/sessions/unknown/effects", 404),
        ("POST", "/v1/sessions/unknown/messages", 404),
        ("POST", "/v1/sessions/unknown/cancel", 404),
        ("POST", "/v1/sessions/unknown/effects/x/outcome", 404),
        ("GET", "/v1/agents/unknown", 404),
        ("GET", "/v1/unheard-of", 404),
        ("DELETE", "/v1/sessions/unknown", 404),
        ("DELETE", "/v1/sessions", 405),
        ("PATCH", "/v1/agents/plain", 405),
        ("GET", "/v1/sessions?limit=0", 400),
        ("GET", "/v1/sessions?limit=1001", 400),
        ("GET", "/v1/sessions?limit=x", 400),
        ("GET", "/v1/sessions?before=-1", 400),
    ],
)
async def test_what_is_not_there_has_a_code_and_a_text(
    core: CoreClient, method: str, path: str, status: int
) -> None:
    body = {"text": "x"} if path.endswith("messages") else {"value": 1} if method == "POST" else None
    answer = await core.call(method, path, body)
    assert answer.status == status
    assert answer.body["error"]["message"]


async def test_events_resume_after_the_last_id_and_come_live(core: CoreClient) -> None:
    await core.agent()
    session_id = await core.session()
    await core.say(session_id)
    harness = await core.connect()
    lease = await harness.lease()
    async with asyncio.timeout(BOUND_S), core.stream(session_id, after=1) as stream:
        assert (await anext(stream))["type"] == "run.started"
        await lease.model("Hello.")
        event = await anext(stream)
        assert event["sessionId"] == session_id
        assert event["payload"]["outcome"] == {"value": "Hello."}
        assert event["time"].endswith("Z")
        await lease.complete()
        assert (await anext(stream))["type"] == "turn.completed"
    answer = await core.call("GET", f"/v1/sessions/{session_id}/events", headers={"Last-Event-ID": "x"})
    assert answer.status == 400


async def test_a_long_log_is_streamed_in_pages_without_a_gap(core: CoreClient) -> None:
    await core.agent(HELPER)
    session_id = await core.session("helper")
    await core.say(session_id)
    lease = await (await core.connect()).lease()
    for n in range(250):
        call = lease.call("bash", f"c{n}", "box")
        lease.harness.start("effect.intent", lease.ask_intent(call))
        lease.harness.start(
            "effect.outcome",
            {"runId": lease.id, "effectId": call["effectId"], "value": "x" * 30_000},
        )
    await lease.complete()
    assert len(await core.log(session_id)) == 253


async def test_streams_end_when_the_core_stops() -> None:
    async with running_core() as core:
        await core.agent()
        session_id = await core.session()
        async with core.stream(session_id) as stream:
            core.stop.set()
            async with asyncio.timeout(BOUND_S):
                assert [event async for event in stream] == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 404),
    ],
)
async def test_pages_of_other_sites_write_nothing(
    core: CoreClient, headers: dict[str, str], status: int
) -> None:
    answer = await core.call("POST", "/v1/sessions", {"agentId": "x"}, headers=headers)
    assert answer.status == status
    own = await core.call("POST", "/v1/sessions", {"agentId": "x"}, headers={"Origin": core.ready.http})
    assert own.status == 404


async def test_a_token_is_asked_for_everywhere_but_at_health() -> None:
    async with running_core(core_token="secret-token") as core:
        assert (await core.get("/v1/agents")).status == 200
        for given in (None, "Bearer", "Bearer wrong", "Basic secret-token", "Bearer secret-tokenx"):
            headers = {"Authorization": given or ""}
            for path in ("/v1/agents", "/plain", "/openapi.json", "/unknown", "/sessions/a/b"):
                answer = await core.call("GET", path, headers=headers)
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert (await core.call("GET", "/health", headers=headers)).status == 200


async def test_the_description_names_every_route(core: CoreClient) -> None:
    document = (await core.get("/openapi.json")).body
    described = {(method, path) for path, operations in document["paths"].items() for method in operations}
    assert document["openapi"] == "3.1.0"
    from services.common.hosts import HostCheck
    from services.dev_core.http.server import HttpServer

    server = HttpServer(core.ready.core, HostCheck(()), None, {})
    routed = {
        (route.method.lower(), route.resource.canonical)
        for route in server._runner.app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    paths = ("/", "/agents", "/fleet", "/sessions/{session}", "/console/{file}", "/openapi.json")
    pages = {("get", path) for path in (*paths, "/plain", "/plain/sessions/{session}")}
    assert {(m, p.replace("{effect}", "{effect}")) for m, p in routed} - pages == described
    refs = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                refs.add(value["$ref"].rpartition("/")[2])
            for member in value.values():
                walk(member)
        elif isinstance(value, list):
            for member in value:
                walk(member)

    walk(document)
    assert refs <= set(document["components"]["schemas"])


async def test_the_page_shows_hostile_content_as_text(core: CoreClient) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
    manifest = {**PLAIN, "id": hostile}
    assert (await core.put("/v1/agents/%3Cb%3E", {"manifest": manifest})).status == 201
    session_id = await core.session("<b>")
    await core.say(session_id, hostile)
    for path in ("/plain", f"/plain/sessions/{session_id}"):
        page = await core.get(path)
        assert page.status == 200
        assert "<script" not in page.body
        assert "<img" not in page.body
        assert "<b>" not in page.body
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
    assert "&lt;script&gt;alert(1)" in page.body
    assert "turn.started" in page.body
    assert (await core.get("/plain/sessions/unknown")).status == 404


@pytest.mark.parametrize("path", ["/", "/agents", "/fleet", "/sessions/any", "/console/main.js"])
async def test_the_console_runs_nothing_but_its_own_files_and_is_open(path: str) -> None:
    async with running_core(core_token="secret-token") as core:
        answer = await core.call("GET", path, headers={"Authorization": ""})
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        tag = {"Authorization": "", "If-None-Match": answer.headers["ETag"]}
        assert (await core.call("GET", path, headers=tag)).status == 304
        assert (await core.call("GET", "/console/../core.py", headers={"Authorization": ""})).status != 200
