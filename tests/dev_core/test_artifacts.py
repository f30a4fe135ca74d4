"""Artifacts: saved by an agent, exported when a turn ends, given by a person, read back."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from protocol import frames
from services.dev_core.artifacts.blobs import MAX_ARTIFACT_BYTES
from tests.dev_core.support import SANDBOX_TOOLS, CoreClient, Harness, Lease, Refused, running_core, tool

KEEPER = {
    "manifestSchemaVersion": 4,
    "id": "keeper",
    "capabilities": [
        {"id": "nylorun.artifacts", "type": "agent", "tools": [tool("save_artifact")]},
        {"id": "box", "type": "agent", "sandbox": {}, "tools": [tool(name) for name in SANDBOX_TOOLS]},
    ],
}
DRY = {**KEEPER, "id": "dry", "capabilities": [KEEPER["capabilities"][0]]}  # type: ignore[index]
BOUND_S = 10.0


async def leased(core: CoreClient, manifest: dict[str, Any] = KEEPER) -> tuple[Harness, Lease]:
    await core.agent(manifest)
    session = await core.session(manifest["id"])
    await core.say(session)
    harness = await core.connect(workspace=True)
    return harness, await harness.lease()


async def asked(harness: Harness, method: str) -> frames.Request:
    async with asyncio.timeout(BOUND_S):
        request = await harness.core_requests.get()
    assert request.m == method
    return request


async def answer(harness: Harness, request: frames.Request, result: Any) -> None:
    await harness.raw(frames.encode_answer(request.id, result))


def save(lease: Lease, call: str = "c", /, **given: Any) -> dict[str, Any]:
    return lease.call("save_artifact", call, capability="nylorun.artifacts") | {"input": given}


def file(data: bytes) -> dict[str, Any]:
    return {"kind": "read", "path": "/workspace/x", "base64": base64.b64encode(data).decode()}


async def saved(lease: Lease, call: str = "c", /, **given: Any) -> dict[str, Any]:
    """The tool's outcome without a workspace in between."""
    reply = await lease.intent(save(lease, call, **given))
    assert reply["status"] == "completed"
    outcome: dict[str, Any] = reply["outcome"]["value"]
    return outcome


async def note_workspace(harness: Harness, lease: Lease) -> None:
    """Lets the core know that the session has a workspace, as a harness does that opened it."""
    record = {
        "key": "nylorun-tn_dev-0123456789abcdef",
        "sessionId": lease.session_id,
        "backend": "virtual",
        "image": "i",
        "state": "running",
        "createdAt": "2026-01-02T03:04:05.678Z",
        "updatedAt": "2026-01-02T03:04:05.678Z",
    }
    event = {
        "runId": lease.id,
        "sessionId": lease.session_id,
        "turnId": lease.start["checkpoint"]["turnId"],
        "type": "sandbox.state",
        "payload": {"state": "running"},
        "record": record,
    }
    assert await harness.ask("event", event) == {}


async def test_a_file_is_read_over_the_runs_connection_and_kept(core: CoreClient) -> None:
    harness, lease = await leased(core)
    effect = save(lease, path="/workspace/plot.png")
    _, reply = harness.start("effect.intent", lease.ask_intent(effect))
    request = await asked(harness, "workspace.read")
    assert request.p == {
        "session": {"ownerId": lease.session_id, "activeTurnId": lease.start["checkpoint"]["turnId"]},
        "spec": {},
        "bytes": {"path": "/workspace/plot.png", "maxBytes": MAX_ARTIFACT_BYTES},
    }
    await answer(harness, request, file(b"\x89PNG"))
    async with asyncio.timeout(BOUND_S):
        outcome = (await reply)["outcome"]["value"]
    output = outcome["output"]
    assert outcome["kind"] == "completed"
    assert {**output, "artifactId": ""} == {
        "artifactId": "",
        "version": 1,
        "name": "plot.png",
        "contentType": "image/png",
        "size": 4,
    }
    path = f"/v1/sessions/{lease.session_id}/artifacts/{output['artifactId']}/1"
    async with core.http.get(core.ready.http + path) as response:
        assert await response.read() == b"\x89PNG"
        assert response.headers["Content-Type"] == "image/png"
        assert response.headers["Content-Disposition"] == 'attachment; filename="plot.png"'
        assert "sandbox" in response.headers["Content-Security-Policy"]
    types = await core.types(lease.session_id)
    assert types[-2:] == ["artifact.saved", "tool.completed"]


async def test_another_version_keeps_the_first(core: CoreClient) -> None:
    _, lease = await leased(core)
    first = (await saved(lease, "a", content="one", name="n.md"))["output"]
    assert (first["name"], first["contentType"], first["size"]) == ("n.md", "text/markdown", 3)
    second = (await saved(lease, "b", content="twò", artifactId=first["artifactId"]))["output"]
    assert (second["artifactId"], second["version"], second["size"]) == (first["artifactId"], 2, 4)
    base = f"/v1/sessions/{lease.session_id}/artifacts"
    listed = (await core.get(base)).body["artifacts"]
    assert [(each["version"], each["name"]) for each in listed] == [(2, "artifact.txt")]
    assert (await core.get(f"{base}/{first['artifactId']}/1")).body == "one"
    assert (await core.get(f"{base}/{first['artifactId']}/latest")).body == "twò"
    assert (await core.get(f"/v1/artifacts/{first['artifactId']}/2")).body == "twò"
    assert (await core.get(f"{base}/{first['artifactId']}/3")).code == "not_found"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "artifact.invalid"),
        ({"path": "a", "content": "b"}, "artifact.invalid"),
        ({"path": ""}, "artifact.invalid"),
        ({"content": 1}, "artifact.invalid"),
        ({"content": "x", "contentType": "no type\n"}, "artifact.invalid"),
        ({"content": "x", "artifactId": "art_0"}, "artifact.not_found"),
    ],
)
async def test_what_cannot_be_saved_is_a_failure_that_the_model_reads(
    core: CoreClient, given: dict[str, Any], code: str
) -> None:
    _, lease = await leased(core)
    outcome = await saved(lease, **given)
    assert outcome["kind"] == "failed"
    assert outcome["code"] == code
    assert (await core.get(f"/v1/sessions/{lease.session_id}/artifacts")).body == {"artifacts": []}


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"kind": "missing", "path": "/workspace/x"}, "artifact.not_found"),
        ({"kind": "failed", "code": "artifact.too_large", "message": "big"}, "artifact.too_large"),
        ({"kind": "read", "path": "p", "base64": "*"}, "artifact.read_failed"),
        ({"kind": "odd"}, "artifact.read_failed"),
    ],
)
async def test_a_file_that_cannot_be_read_is_a_failure(
    core: CoreClient, result: dict[str, Any], code: str
) -> None:
    harness, lease = await leased(core)
    _, reply = harness.start("effect.intent", lease.ask_intent(save(lease, path="x")))
    await answer(harness, await asked(harness, "workspace.read"), result)
    async with asyncio.timeout(BOUND_S):
        assert (await reply)["outcome"]["value"]["code"] == code


async def test_an_agent_without_a_workspace_can_save_content_only(core: CoreClient) -> None:
    _, lease = await leased(core, DRY)
    assert (await saved(lease, "a", path="x"))["code"] == "artifact.no_workspace"
    assert (await saved(lease, "b", content="\ud800"))["output"]["size"] == 1


async def test_a_cancel_while_the_file_is_read_saves_nothing(core: CoreClient) -> None:
    harness, lease = await leased(core)
    _, reply = harness.start("effect.intent", lease.ask_intent(save(lease, path="x")))
    request = await asked(harness, "workspace.read")
    assert (await core.post(f"/v1/sessions/{lease.session_id}/cancel")).status == 200
    await answer(harness, request, file(b"late"))
    with pytest.raises(Refused, match="turn_cancelled"):
        async with asyncio.timeout(BOUND_S):
            await reply
    assert (await core.get(f"/v1/sessions/{lease.session_id}/artifacts")).body == {"artifacts": []}


async def test_a_connection_lost_while_the_file_is_read_leaves_the_effect_uncertain(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db", lease_ms=200) as core:
        harness, lease = await leased(core)
        harness.start("effect.intent", lease.ask_intent(save(lease, path="x")))
        await asked(harness, "workspace.read")
        await harness.cut()
        await core.until(lease.session_id, "effect.uncertain")
        assert await core.status(lease.session_id) == "uncertain"


async def test_outputs_become_artifacts_when_the_turn_ends(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await note_workspace(harness, lease)
    done = asyncio.ensure_future(lease.complete())
    request = await asked(harness, "workspace.read")
    assert request.p["list"] == {"dir": "/workspace/outputs", "maxEntries": 10_000}
    entries = [{"path": "a/é.csv", "size": 3}, {"path": "huge", "size": MAX_ARTIFACT_BYTES + 1}]
    entries.append({"path": "gone", "size": 1})
    listing = {"entries": entries, "truncated": False}
    await answer(harness, request, {"kind": "listed", "path": "/workspace/outputs", "listing": listing})
    request = await asked(harness, "workspace.read")
    assert request.p["bytes"]["path"] == "/workspace/outputs/a/é.csv"
    await answer(harness, request, file(b"1,2"))
    await answer(harness, await asked(harness, "workspace.read"), {"kind": "missing", "path": "p"})
    assert "cursor" in await done
    listed = (await core.get(f"/v1/sessions/{lease.session_id}/artifacts")).body["artifacts"]
    assert [(each["name"], each["path"], each["contentType"]) for each in listed] == [
        ("a/é.csv", "a/é.csv", "text/csv")
    ]
    assert listed[0]["sha256"] == hashlib.sha256(b"1,2").hexdigest()
    log = await core.log(lease.session_id)
    noted = next(event for event in log if event["type"] == "artifacts.incomplete")["payload"]
    assert [problem["path"] for problem in noted["problems"]] == ["huge", "gone"]
    assert await core.status(lease.session_id) == "completed"


async def test_an_unchanged_output_gets_no_new_version(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await note_workspace(harness, lease)
    versions = []
    for content in (b"one", b"one", b"two"):
        done = asyncio.ensure_future(lease.complete())
        listing = {"entries": [{"path": "f", "size": 3}], "truncated": False}
        listed = {"kind": "listed", "path": "/workspace/outputs", "listing": listing}
        await answer(harness, await asked(harness, "workspace.read"), listed)
        await answer(harness, await asked(harness, "workspace.read"), file(content))
        await done
        found = (await core.get(f"/v1/sessions/{lease.session_id}/artifacts")).body["artifacts"]
        versions.append([each["version"] for each in found])
        await core.say(lease.session_id)
        lease = await harness.lease()
    assert versions == [[1], [1], [2]]


async def test_a_turn_without_a_workspace_ends_without_a_question(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await lease.complete()
    assert harness.core_requests.empty()


async def test_a_failed_listing_keeps_no_turn_from_ending(core: CoreClient) -> None:
    harness, lease = await leased(core)
    await note_workspace(harness, lease)
    done = asyncio.ensure_future(lease.complete())
    request = await asked(harness, "workspace.read")
    await harness.raw(frames.encode_refusal(request.id, "internal", "disk"))
    await done
    assert await core.status(lease.session_id) == "completed"
    assert "artifacts.incomplete" in await core.types(lease.session_id)


@pytest.mark.parametrize(
    "listing",
    [
        {
            "entries": [5, {"path": "f"}, {"path": 1, "size": 1}, {"path": "f", "size": -1}],
            "truncated": False,
        },
        {"entries": {}, "truncated": False},
        5,
    ],
)
async def test_a_listing_that_is_none_keeps_no_turn_from_ending(core: CoreClient, listing: Any) -> None:
    harness, lease = await leased(core)
    await note_workspace(harness, lease)
    done = asyncio.ensure_future(lease.complete())
    listed = {"kind": "listed", "path": "/workspace/outputs", "listing": listing}
    await answer(harness, await asked(harness, "workspace.read"), listed)
    await done
    assert await core.status(lease.session_id) == "completed"
    assert "artifacts.incomplete" in await core.types(lease.session_id)


@pytest.mark.parametrize("text", ["é", "x", "\ud800", "a b="])
async def test_a_file_that_comes_back_garbled_is_a_failed_outcome(core: CoreClient, text: str) -> None:
    harness, lease = await leased(core)
    saving = asyncio.ensure_future(lease.intent(save(lease, path="f")))
    garbled = {"kind": "read", "path": "/workspace/f", "base64": text}
    await answer(harness, await asked(harness, "workspace.read"), garbled)
    outcome = (await saving)["outcome"]["value"]
    assert (outcome["kind"], outcome["code"]) == ("failed", "artifact.read_failed")


async def test_a_connection_lost_during_the_export_ends_the_turn_later(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db", lease_ms=200) as core:
        harness, lease = await leased(core)
        await note_workspace(harness, lease)
        done = asyncio.ensure_future(lease.complete())
        await asked(harness, "workspace.read")
        await harness.cut()
        with pytest.raises(Refused):
            await done
        again = await (await core.connect(workspace=True)).lease()
        assert again.session_id == lease.session_id
        assert await core.status(lease.session_id) == "running"


async def test_a_person_gives_a_file_and_names_it_in_a_message(core: CoreClient) -> None:
    await core.agent()
    session = await core.session()
    path = f"/v1/sessions/{session}/artifacts"
    made = await core.call("POST", f"{path}?name=cat.png", b"\x89PNG")
    assert made.status == 201
    assert made.body["contentType"] == "image/png"
    part = {"type": "media", "mediaType": "image/png", "reference": made.body["reference"]}
    wrong = {**part, "reference": {**made.body["reference"], "version": 2}}
    refused = await core.post(f"/v1/sessions/{session}/messages", {"content": [wrong]})
    assert refused.code == "invalid"
    assert "content[0] names version 2" in refused.body["error"]["message"]
    assert (await core.post(f"/v1/sessions/{session}/messages", {"content": [part]})).status == 202
    other = await core.session()
    assert (await core.get(f"/v1/sessions/{other}/artifacts/{made.body['artifactId']}/1")).code == "not_found"


async def test_a_file_over_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db") as core:
        await core.agent()
        session = await core.session()
        made = await core.call("POST", f"/v1/sessions/{session}/artifacts", b"x" * (MAX_ARTIFACT_BYTES + 1))
        assert made.code == "too_large"
        assert list((tmp_path / "core.db.artifacts").iterdir()) == []


async def test_artifacts_outlive_a_restart(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db") as core:
        await core.agent()
        session = await core.session()
        made = await core.call("POST", f"/v1/sessions/{session}/artifacts?name=n.txt", b"kept")
    (tmp_path / "core.db.artifacts" / "x.part").write_bytes(b"half")
    async with running_core(tmp_path / "core.db") as core:
        found = await core.get(f"/v1/sessions/{session}/artifacts/{made.body['artifactId']}/1")
        assert found.body == "kept"
        assert not (tmp_path / "core.db.artifacts" / "x.part").exists()
