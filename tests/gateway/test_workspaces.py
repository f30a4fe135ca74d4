from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.executors.contract import SandboxEvent, WorkspaceFailed
from protocol.jsjson import Parsed
from tests.gateway.support import HELLO, NEVER, effect, gateway, logs, one_after_another, settle
from tests.gateway.virtual_time import virtual_time

SESSION = {"ownerId": "s1", "activeTurnId": "t1"}
BASH = {"session": SESSION, "spec": {"image": "i"}, "tool": "bash", "input": {"command": "ls"}}
RECORD = {
    "key": "nylorun-tn_1-0123456789abcdef",
    "sessionId": "s1",
    "backend": "virtual",
    "image": "i",
    "state": "running",
    "createdAt": "x",
    "updatedAt": "x",
}
OURS = "nylorun-tn_1-0123456789abcdef"


class FakeWorkspaces:
    """Notes every call; `answers` holds results, exceptions or coroutine functions by operation."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self.started = asyncio.Event()

    async def _answer(self, operation: str, default: Any, *arguments: Any) -> Any:
        self.calls.append((operation, *arguments))
        self.started.set()
        answer = self.answers.get(operation, default)
        if isinstance(answer, Exception):
            raise answer
        return await answer(*arguments) if callable(answer) else answer

    async def run(self, caller: Any, spec: Any, tool: str, input_: Any, signal: Any) -> Parsed:
        value = await self._answer("run", {"kind": "completed"}, caller, spec, tool, input_, signal)
        return Parsed(value, plain=True)

    async def read_bytes(self, caller: Any, spec: Any, path: str, max_bytes: int, signal: Any) -> Any:
        return await self._answer("read_bytes", {"kind": "missing"}, caller, spec, path, max_bytes, signal)

    async def list_files(self, caller: Any, spec: Any, dir_: str, max_entries: int, signal: Any) -> Any:
        return await self._answer("list_files", {"kind": "missing"}, caller, spec, dir_, max_entries, signal)

    async def report(self, tenant_id: str, preference: str) -> Any:
        return await self._answer("report", {"backend": "virtual"}, tenant_id, preference)

    async def sweep(self, tenant_id: str, preference: str, now_ms: Any, claim_event: Any) -> Any:
        return await self._answer("sweep", [], tenant_id, preference, now_ms, claim_event)

    async def remove(self, tenant_id: str, preference: str, all_: bool, keys: Any, sandbox_ids: Any) -> None:
        await self._answer("remove", None, tenant_id, preference, all_, list(keys), list(sandbox_ids))


async def until_stopped(*arguments: Any) -> Any:
    signal = arguments[-1]
    await signal.wait()
    signal.raise_if_set()


async def asked(core: Any, method: str, params: Any) -> Any:
    return await core.response(core.ask(method, params))


def refused_with(response: dict[str, Any]) -> str:
    assert response["ok"] is False
    code: str = response["e"]["code"]
    return code


@virtual_time
async def test_tools_are_run_for_the_session_core_names():
    workspaces = FakeWorkspaces()
    async with gateway(workspaces=workspaces) as gw:
        gw.core.auto["hello"] = {**HELLO, "sandbox": {"backend": "virtual"}}
        core = await gw.greeted()
        await core.expect("lease")
        response = await asked(core, "workspace.exec", {**BASH, "session": {**SESSION, "sandboxId": "box"}})
        assert response == {"t": "res", "id": 1, "ok": True, "r": {"kind": "completed"}}
        ((_, caller, spec, tool, input_, _signal),) = workspaces.calls
        assert (caller.tenant_id, caller.preference) == ("tn_1", "virtual")
        assert (caller.owner_id, caller.sandbox_id, caller.active_turn_id) == ("s1", "box", "t1")
        assert (spec, tool, input_) == ({"image": "i"}, "bash", {"command": "ls"})


@pytest.mark.spec("harness-api:10.28")
@pytest.mark.parametrize(
    ("method", "tools"),
    [
        ("workspace.exec", ["bash"]),
        ("workspace.write", ["write", "edit"]),
        ("workspace.read", ["read", "grep", "glob"]),
    ],
)
@virtual_time
async def test_each_method_runs_its_own_tools_and_no_other(method, tools):
    workspaces = FakeWorkspaces()
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        for tool in ("bash", "read", "grep", "glob", "write", "edit"):
            response = await asked(core, method, {**BASH, "tool": tool})
            assert response["ok"] is (tool in tools)
            if tool not in tools:
                assert refused_with(response) == "invalid"
        assert sorted(call[3] for call in workspaces.calls) == sorted(tools)


@pytest.mark.spec("harness-api:10.28")
@virtual_time
async def test_a_read_is_chosen_by_its_keys_and_two_variants_are_invalid():
    workspaces = FakeWorkspaces()
    read = {"session": SESSION, "spec": None}
    file, folder = {"path": "/workspace/a", "maxBytes": 3}, {"dir": "/workspace", "maxEntries": 2}
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        assert (await asked(core, "workspace.read", {**read, "bytes": file}))["r"] == {"kind": "missing"}
        assert (await asked(core, "workspace.read", {**read, "list": folder}))["r"] == {"kind": "missing"}
        both = await asked(core, "workspace.read", {**read, "bytes": file, "list": folder})
        assert refused_with(both) == "invalid"
        mixed = await asked(core, "workspace.read", {**BASH, "tool": "read", "bytes": file})
        assert refused_with(mixed) == "invalid"
        assert [(call[0], *call[3:5]) for call in workspaces.calls] == [
            ("read_bytes", "/workspace/a", 3),
            ("list_files", "/workspace", 2),
        ]


@pytest.mark.spec("harness-api:10.28")
@virtual_time
async def test_before_any_hello_was_answered_workspaces_are_unavailable():
    workspaces = FakeWorkspaces()
    async with gateway(workspaces=workspaces) as gw:
        gw.core.auto["hello"] = NEVER
        core = await gw.core.connection()
        assert refused_with(await asked(core, "workspace.report", {})) == "unavailable"
        assert workspaces.calls == []


@virtual_time
async def test_a_later_connection_serves_before_its_own_hello():
    async with gateway(workspaces=FakeWorkspaces()) as gw:
        core = await gw.core.connection()
        await core.expect("lease")
        gw.core.auto["hello"] = NEVER
        core.close()
        core = await gw.core.connection(2)
        assert (await asked(core, "workspace.report", {}))["ok"] is True


@pytest.mark.parametrize("method", ["lease.renew", "effect.intent"])
@virtual_time
async def test_requests_of_the_other_direction_are_unknown(method):
    params = {"runId": "r1"}
    if method == "effect.intent":
        params |= {"effect": effect("e1").document, "requestHash": "0" * 64}  # type: ignore[dict-item]
    async with gateway(workspaces=FakeWorkspaces()) as gw:
        core = await gw.greeted()
        response = await asked(core, method, params)
        assert refused_with(response) == "invalid"
        assert "unknown request" in response["e"]["message"]


@virtual_time
async def test_without_workspaces_every_request_is_unknown():
    async with gateway() as gw:
        core = await gw.greeted()
        await core.expect("lease")
        assert refused_with(await asked(core, "workspace.report", {})) == "invalid"


@pytest.mark.spec("harness-api:10.28")
@virtual_time
async def test_an_abort_frame_stops_the_command_and_its_answer_still_comes():
    workspaces = FakeWorkspaces()
    workspaces.answers["run"] = until_stopped
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        request_id = core.ask("workspace.exec", BASH)
        await workspaces.started.wait()
        core.send({"t": "abort", "id": request_id})
        response = await core.response(request_id)
        assert refused_with(response) == "unavailable"
        assert response["e"]["message"] == "the requester gave up"
        abort = workspaces.calls[0][-1].abort
        assert abort.kind == "cancel"


@virtual_time
async def test_an_abort_right_behind_its_request_is_in_force_when_the_work_starts():
    workspaces = FakeWorkspaces()
    workspaces.answers["run"] = until_stopped
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        await core.expect("lease")
        request_id = core.ask("workspace.exec", BASH)
        core.send({"t": "abort", "id": request_id})
        assert refused_with(await core.response(request_id)) == "unavailable"


@virtual_time
async def test_a_lost_connection_stops_the_work_as_a_shutdown():
    workspaces = FakeWorkspaces()
    workspaces.answers["run"] = until_stopped
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        core.ask("workspace.exec", BASH)
        await workspaces.started.wait()
        core.close()
        await settle()
        assert workspaces.calls[0][-1].abort.kind == "shutdown"
        assert len(gw.host.tasks) == 0


@pytest.mark.spec("sandbox-manager:19.30")
@virtual_time
async def test_requests_are_served_at_once_beside_each_other_and_beside_our_own():
    """Core reads files while our intent is unanswered: nothing may wait for anything else."""
    workspaces = FakeWorkspaces()
    release = asyncio.Event()

    async def slow(*_: Any) -> Any:
        await release.wait()
        return {"kind": "completed"}

    workspaces.answers["run"] = slow
    async with gateway(one_after_another(effect("e1")), workspaces=workspaces) as gw:
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        first = core.ask("workspace.exec", BASH)
        assert (await asked(core, "workspace.report", {}))["ok"] is True
        file = {"session": SESSION, "spec": None, "bytes": {"path": "/workspace/a", "maxBytes": 3}}
        assert (await asked(core, "workspace.read", file))["r"] == {"kind": "missing"}
        release.set()
        assert (await core.response(first))["ok"] is True
        core.answer(intent, {"status": "completed", "outcome": {"value": 1}})
        output = await core.expect("turn.completed")
        assert (await asked(core, "workspace.report", {}))["ok"] is True
        core.answer(output, {})


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (WorkspaceFailed("invalid", "no such key"), "invalid", "no such key"),
        (WorkspaceFailed("unavailable", "a shard is gone"), "unavailable", "a shard is gone"),
        (WorkspaceFailed("strange", "odd"), "internal", "odd"),
        (KeyError("secret"), "internal", "The workspace request failed"),
    ],
)
@virtual_time
async def test_failures_keep_their_code_and_faults_say_nothing(failure, code, message):
    workspaces = FakeWorkspaces()
    workspaces.answers["run"] = failure
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        response = await asked(core, "workspace.exec", BASH)
        assert response["e"] == {"code": code, "message": message}


@virtual_time
async def test_a_sweep_passes_the_time_on_and_leaves_records_out_that_core_would_refuse():
    workspaces = FakeWorkspaces()
    workspaces.answers["sweep"] = [RECORD, {**RECORD, "state": "odd"}, {**RECORD, "extra": 1}, "x"]
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        await core.expect("lease")
        with logs() as captured:
            response = await asked(core, "workspace.sweep", {"now": 1700000000000.5})
        assert response["r"] == {"workspaces": [RECORD]}
        assert [entry["event"] for entry in captured] == ["harness_workspace_record_dropped"] * 3
        await asked(core, "workspace.sweep", {})
        assert [call[1:4] for call in workspaces.calls] == [
            ("tn_1", "auto", 1700000000000.5),
            ("tn_1", "auto", None),
        ]


@pytest.mark.spec("harness-api:10.29")
@virtual_time
async def test_what_stands_before_a_foreign_key_is_removed_and_the_answer_is_invalid():
    workspaces = FakeWorkspaces()
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        params = {"keys": [OURS, "nylorun-tn_2-0123456789abcdef", OURS], "sandboxIds": ["box"]}
        assert refused_with(await asked(core, "workspace.remove", params)) == "invalid"
        assert workspaces.calls == [("remove", "tn_1", "auto", False, [OURS], [])]


@pytest.mark.parametrize(
    ("params", "call"),
    [
        ({"all": True}, (True, [], [])),
        ({"keys": [OURS], "sandboxIds": ["a", "b"]}, (False, [OURS], ["a", "b"])),
        ({}, (False, [], [])),
    ],
)
@virtual_time
async def test_removals_are_passed_on_in_order(params, call):
    workspaces = FakeWorkspaces()
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        assert (await asked(core, "workspace.remove", params))["r"] == {}
        assert workspaces.calls == [("remove", "tn_1", "auto", *call)]


@pytest.mark.parametrize("keys", [["foreign"], ["foreign", OURS]])
@virtual_time
async def test_a_foreign_key_in_front_removes_nothing_but_all(keys):
    workspaces = FakeWorkspaces()
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        assert refused_with(await asked(core, "workspace.remove", {"keys": keys})) == "invalid"
        assert workspaces.calls == []
        response = await asked(core, "workspace.remove", {"keys": keys, "all": True})
        assert refused_with(response) == "invalid"
        assert workspaces.calls == [("remove", "tn_1", "auto", True, [], [])]


@pytest.mark.spec("harness-api:10.30")
@virtual_time
async def test_events_of_a_request_are_claimed_without_a_run_before_its_answer():
    workspaces = FakeWorkspaces()

    async def run(caller: Any, *_: Any) -> Any:
        await caller.claim_event(SandboxEvent("s1", "t1", "sandbox.exec", {"command": "ls"}))
        await caller.claim_event(SandboxEvent("s1", None, "sandbox.state", {"state": "stopped"}, RECORD))
        return {"kind": "completed"}

    workspaces.answers["run"] = run
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        request_id = core.ask("workspace.exec", BASH)
        claim = await core.expect("event")
        assert claim["p"] == {
            "sessionId": "s1",
            "turnId": "t1",
            "type": "sandbox.exec",
            "payload": {"command": "ls"},
        }
        await settle()
        assert [frame for frame in core.inbox if frame["t"] == "res"] == []
        core.refuse(claim, "invalid")
        core.answer(await core.expect("event", turnId=None), {})
        assert (await core.response(request_id))["ok"] is True


@virtual_time
async def test_a_result_that_is_no_object_is_answered_invalid():
    workspaces = FakeWorkspaces()
    workspaces.answers["report"] = ["no object"]
    async with gateway(workspaces=workspaces) as gw:
        core = await gw.greeted()
        await core.expect("lease")
        assert refused_with(await asked(core, "workspace.report", {})) == "invalid"
