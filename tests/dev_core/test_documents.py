"""`session.mcp`, `event` and `transcript.read` (harness-api 4.1, 5.6, 5.8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.errors import HarnessApiError
from tests.dev_core.support import (
    BOUND_S,
    CONNECTED,
    HELPER,
    SNAPSHOT,
    CoreClient,
    Harness,
    Lease,
    Refused,
)

RECORD = {
    "key": "nylorun-tn_dev-0123456789abcdef",
    "backend": "virtual",
    "image": "img:1",
    "state": "running",
    "createdAt": "2026-01-01T00:00:00.000Z",
    "updatedAt": "2026-01-01T00:00:00.000Z",
}


async def leased(core: CoreClient, *, workspace: bool = False) -> tuple[Harness, Lease]:
    await core.agent(HELPER)
    await core.say(await core.session("helper"))
    harness = await core.connect(workspace=workspace)
    return harness, await harness.lease()


# session.mcp


@pytest.mark.spec("harness-api:10.31")
async def test_the_first_snapshot_of_a_session_counts_for_its_life(core: CoreClient) -> None:
    harness, lease = await leased(core)
    answer = await harness.ask(
        "session.mcp", {"runId": lease.id, "snapshot": SNAPSHOT, "diagnostics": [CONNECTED]}
    )
    tools = [
        {
            "capabilityId": "docs",
            "name": "docs__search",
            "description": "Search.",
            "inputSchema": {"type": "object"},
        }
    ]
    assert answer == {"snapshot": SNAPSHOT, "sessionTools": tools}
    other = {**SNAPSHOT, "mcpTools": []}
    failed = {**CONNECTED, "outcome": "failed", "message": "gone"}
    more = {**CONNECTED, "serverName": "more"}
    again = {"runId": lease.id, "snapshot": other, "diagnostics": [more, failed]}
    assert await harness.ask("session.mcp", again) == answer
    assert (await core.view(lease.session_id))["mcp"] == {"servers": [failed, more]}
    await lease.complete("a")
    await core.say(lease.session_id, "next")
    second = await harness.lease()
    assert second.start["routing"]["mcpSnapshot"] == SNAPSHOT
    assert second.start["sessionTools"] == tools
    assert await second.intent(second.call("docs__search", "c1", "docs")) == {"status": "execute"}
    diagnostics = {"runId": second.id, "diagnostics": [CONNECTED]}
    assert await harness.ask("session.mcp", diagnostics) == answer
    assert (await core.types(lease.session_id)).count("mcp.discovered") == 1


TOOL = SNAPSHOT["mcpTools"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    "params",
    [
        {"diagnostics": [CONNECTED]},
        {"snapshot": None, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "snapshotSchemaVersion": 2}, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "manifestHash": 1}, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "mcpTools": {}}, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "mcpTools": [1]}, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "mcpTools": [{**TOOL, "name": 1}]}, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "mcpTools": [{**TOOL, "inputSchema": True}]}, "diagnostics": []},
        {"snapshot": {**SNAPSHOT, "mcpTools": [{**TOOL, "agentId": None}]}, "diagnostics": []},
        {"snapshot": SNAPSHOT, "diagnostics": ["connected"]},
    ],
)
async def test_a_snapshot_that_is_none_is_invalid(core: CoreClient, params: dict[str, Any]) -> None:
    harness, lease = await leased(core)
    with pytest.raises(Refused, match="invalid"):
        await harness.ask("session.mcp", {"runId": lease.id, **params})
    assert "mcp" not in await core.view(lease.session_id)


# event


def claim(lease: Lease, type_: str = "sandbox.exec", **more: Any) -> dict[str, Any]:
    turn_id = lease.start["checkpoint"]["turnId"]
    base = {"runId": lease.id, "sessionId": lease.session_id, "turnId": turn_id}
    return {**base, "type": type_, "payload": {"tool": "bash"}, **more}


@pytest.mark.spec("harness-api:10.30")
async def test_a_run_claims_events_of_its_own_session(core: CoreClient) -> None:
    harness, lease = await leased(core)
    record = {**RECORD, "sessionId": lease.session_id}
    assert await harness.ask("event", claim(lease, "sandbox.state", record=record)) == {}
    assert await harness.ask("event", claim(lease)) == {}
    log = await core.log(lease.session_id)
    assert [(e["type"], e["payload"]) for e in log[-2:]] == [
        ("sandbox.state", {"tool": "bash"}),
        ("sandbox.exec", {"tool": "bash"}),
    ]


@pytest.mark.spec("harness-api:10.30")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sessionId": "other"}, "run_not_held"),
        ({"runId": "other"}, "run_not_held"),
        ({"runId": None}, "run_not_held"),
        ({"record": RECORD}, "invalid"),
        ({"type": "sandbox.state", "record": {**RECORD, "sessionId": "other"}}, "invalid"),
        ({"type": "sandbox.state", "record": {**RECORD, "key": "nylorun-tn_other-0"}}, "invalid"),
    ],
)
async def test_other_claims_are_refused(core: CoreClient, change: dict[str, Any], code: str) -> None:
    harness, lease = await leased(core)
    params = {**claim(lease), **change}
    if params["runId"] is None:
        del params["runId"]
    if "record" in params:
        params["record"] = {"sessionId": lease.session_id, **params["record"]}
    with pytest.raises(Refused) as caught:
        await harness.ask("event", params)
    assert caught.value.code == code
    assert "sandbox.exec" not in await core.types(lease.session_id)


async def test_a_run_that_ended_claims_nothing(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await lease.complete("a")
    with pytest.raises(Refused, match="run_not_held"):
        await harness.ask("event", claim(lease))


@pytest.mark.parametrize("method", ["workspace.sweep", "workspace.exec"])
async def test_while_a_workspace_request_is_in_flight_its_events_are_taken(
    core: CoreClient, method: str
) -> None:
    await core.connect()  # Has no workspaces, so it is not asked.
    harness, lease = await leased(core, workspace=True)
    workspaces = core.ready.core.workspaces
    session = {"ownerId": lease.session_id, "activeTurnId": None}
    call = {"session": session, "spec": {}, "tool": "bash", "input": {"command": "ls"}}
    params = call if method == "workspace.exec" else {}
    asked = asyncio.create_task(workspaces.request(method, params))
    async with asyncio.timeout(BOUND_S):
        request = await harness.core_requests.get()
    assert (request.m, request.p) == (method, params)
    free = {k: v for k, v in claim(lease).items() if k != "runId"} | {"turnId": None}
    assert await harness.ask("event", free) == {}
    if method == "workspace.exec":
        other = await core.session("helper")
        with pytest.raises(Refused, match="run_not_held"):
            await harness.ask("event", {**free, "sessionId": other})
    result = '{"workspaces":[]}' if method == "workspace.sweep" else '{"kind":"completed"}'
    await harness.raw(f'{{"t":"res","id":{request.id},"ok":true,"r":{result}}}')
    await asked
    with pytest.raises(Refused, match="run_not_held"):
        await harness.ask("event", free)


async def test_core_aborts_a_workspace_request_that_nobody_waits_for(core: CoreClient) -> None:
    harness = await core.connect(workspace=True)
    asked = asyncio.create_task(core.ready.core.workspaces.request("workspace.report", {}))
    async with asyncio.timeout(BOUND_S):
        request = await harness.core_requests.get()
    asked.cancel()
    await harness.hello(workspace=True)
    await harness.hello(workspace=True)
    assert harness.aborted == [request.id]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ('{"t":"res","id":%d,"ok":false,"e":{"code":"unavailable","message":"x"}}', "unavailable"),
        ('{"t":"res","id":%d,"ok":true,"r":[]}', "invalid"),
        ('{"t":"res","id":%d,"ok":true,"r":' + "[" * 1000 + "]" * 1000 + "}", "invalid"),
        (None, "unavailable"),
    ],
)
async def test_a_workspace_request_that_fails_has_a_code(
    core: CoreClient, answer: str | None, code: str
) -> None:
    harness = await core.connect(workspace=True)
    asked = asyncio.create_task(core.ready.core.workspaces.request("workspace.report", {}))
    async with asyncio.timeout(BOUND_S):
        request = await harness.core_requests.get()
    if answer is None:
        await harness.cut()
    else:
        await harness.raw(answer % request.id)
    with pytest.raises(HarnessApiError) as caught:
        await asked
    assert caught.value.code == code


async def test_without_a_harness_that_has_workspaces_they_are_unavailable(core: CoreClient) -> None:
    await core.connect()
    with pytest.raises(HarnessApiError, match="No harness with workspaces"):
        await core.ready.core.workspaces.request("workspace.report", {})


# transcript.read


async def test_a_long_transcript_is_read_in_one_piece_and_folded_once(core: CoreClient) -> None:
    harness, lease = await leased(core)
    entries = [{"n": n, "text": "x" * 100} for n in range(2000)]
    await lease.complete(*entries)
    for turn in range(3):
        await core.say(lease.session_id, "next")
        again = await harness.lease()
        read = await harness.ask("transcript.read", {"runId": again.id})
        assert len(read["entries"]) == 2000 + turn
        await again.complete({"n": turn}, keep=2000 + turn)


async def test_unusual_json_in_a_transcript_comes_back_as_it_was(core: CoreClient) -> None:
    harness, lease = await leased(core)
    entries = [{"b": 1, "2": 1e21, "1": 0.1}, {"k\ud800": "\udfff 😀 \u2028"}, None, [], "", 5e-324]
    await lease.complete(*entries)
    await core.say(lease.session_id, "next")
    again = await harness.lease()
    read = await harness.ask("transcript.read", {"runId": again.id})
    assert read["entries"] == entries
    assert list(read["entries"][0]) == ["1", "2", "b"]


async def test_before_the_first_turn_ended_there_is_nothing_to_read(core: CoreClient) -> None:
    harness, lease = await leased(core)
    read = await harness.ask("transcript.read", {"runId": lease.id})
    assert read == {"cursor": -1, "entries": []}
