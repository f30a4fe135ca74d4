"""Workspaces by HTTP, their upkeep, and the deletion of a session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol import frames
from tests.dev_core.support import HELPER, CoreClient, Harness, running_core
from tests.dev_core.test_artifacts import KEEPER, answer, asked, leased, note_workspace

BOUND_S = 10.0


async def workspace(core: CoreClient) -> tuple[str, Harness]:
    await core.agent(HELPER)
    return await core.session("helper"), await core.connect(workspace=True)


@pytest.mark.parametrize(
    ("path", "body", "method", "call"),
    [
        (
            "exec",
            {"command": "ls", "timeout": 5},
            "workspace.exec",
            {"tool": "bash", "input": {"command": "ls", "timeout": 5}},
        ),
        ("read", {"path": "a"}, "workspace.read", {"tool": "read", "input": {"path": "a"}}),
        (
            "write",
            {"path": "a", "content": ""},
            "workspace.write",
            {"tool": "write", "input": {"path": "a", "content": ""}},
        ),
        (
            "list?dir=/workspace/b&limit=7",
            None,
            "workspace.read",
            {"list": {"dir": "/workspace/b", "maxEntries": 7}},
        ),
    ],
)
async def test_a_workspace_is_used_by_http(
    core: CoreClient, path: str, body: Any, method: str, call: dict[str, Any]
) -> None:
    session, harness = await workspace(core)
    verb = "GET" if body is None else "POST"
    reply = asyncio.ensure_future(core.call(verb, f"/v1/sessions/{session}/workspace/{path}", body))
    request = await asked(harness, method)
    assert request.p == {"session": {"ownerId": session, "activeTurnId": None}, "spec": {}, **call}
    await answer(harness, request, {"kind": "completed", "output": "x"})
    assert (await reply).body == {"kind": "completed", "output": "x"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("exec", {}),
        ("exec", {"command": ""}),
        ("exec", {"command": "x", "timeout": 601}),
        ("exec", {"command": "x", "cwd": "/"}),
        ("read", {"path": "x", "limit": True}),
        ("write", {"path": "x", "content": 1}),
        ("write", []),
    ],
)
async def test_a_wrong_body_reaches_no_workspace(core: CoreClient, path: str, body: Any) -> None:
    session, harness = await workspace(core)
    assert (await core.post(f"/v1/sessions/{session}/workspace/{path}", body)).code == "invalid"
    assert harness.core_requests.empty()


async def test_what_a_workspace_needs_is_said(core: CoreClient) -> None:
    await core.agent()
    await core.agent(HELPER)
    session, other = await core.session(), await core.session("helper")
    body = {"command": "ls"}
    assert (await core.post(f"/v1/sessions/{session}/workspace/exec", body)).code == "no_workspace"
    assert (await core.post(f"/v1/sessions/{other}/workspace/exec", body)).code == "unavailable"
    assert (await core.post("/v1/sessions/none/workspace/exec", body)).code == "not_found"


async def test_a_refusal_of_the_harness_is_told(core: CoreClient) -> None:
    session, harness = await workspace(core)
    reply = asyncio.ensure_future(core.post(f"/v1/sessions/{session}/workspace/read", {"path": "a"}))
    request = await asked(harness, "workspace.read")
    await harness.raw(frames.encode_refusal(request.id, "internal", "no disk"))
    assert (await reply).body["error"] == {
        "code": "unavailable",
        "message": "The workspace did not take the request: no disk.",
    }


async def test_idle_workspaces_are_swept_and_none_is_removed_unasked(core: CoreClient) -> None:
    async with running_core(sweep_ms=100) as swept:
        harness = await swept.connect(workspace=True)
        for _ in range(2):
            request = await asked(harness, "workspace.sweep")
            assert set(request.p) == {"now"}
            record = {"key": "nylorun-tn_dev-ffffffffffffffff", "sessionId": "unknown", "backend": "virtual"}
            record |= {"image": "i", "state": "stopped", "createdAt": "t", "updatedAt": "t"}
            await answer(harness, request, {"workspaces": [record]})


async def test_a_deleted_session_takes_its_files_along(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db") as core:
        harness, lease = await leased(core, KEEPER)
        await note_workspace(harness, lease)
        session = lease.session_id
        assert (await core.call("DELETE", f"/v1/sessions/{session}")).code == "turn_running"
        await core.post(f"/v1/sessions/{session}/cancel")
        kept = await core.session("keeper")
        for owner, data in ((session, b"mine"), (session, b"both"), (kept, b"both")):
            await core.call("POST", f"/v1/sessions/{owner}/artifacts", data)
        reply = asyncio.ensure_future(core.call("DELETE", f"/v1/sessions/{session}"))
        request = await asked(harness, "workspace.remove")
        assert request.p == {"keys": ["nylorun-tn_dev-0123456789abcdef"]}
        await answer(harness, request, {})
        assert (await reply).status == 204
        assert (await core.get(f"/v1/sessions/{session}")).code == "not_found"
        blobs = [path.read_bytes() for path in (tmp_path / "core.db.artifacts").iterdir()]
        assert blobs == [b"both"]
        assert (await core.call("DELETE", f"/v1/sessions/{session}")).code == "not_found"


async def test_a_workspace_is_removed_when_a_harness_comes_back(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db", sweep_ms=100) as core:
        harness, lease = await leased(core, KEEPER)
        await note_workspace(harness, lease)
        await core.post(f"/v1/sessions/{lease.session_id}/cancel")
        await harness.cut()
        assert (await core.call("DELETE", f"/v1/sessions/{lease.session_id}")).status == 204
        again = await core.connect(workspace=True)
        await answer(again, await asked(again, "workspace.sweep"), {"workspaces": []})
        request = await asked(again, "workspace.remove")
        assert request.p == {"keys": ["nylorun-tn_dev-0123456789abcdef"]}
        await answer(again, request, {})
        assert (await asked(again, "workspace.sweep")).p.keys() == {"now"}
