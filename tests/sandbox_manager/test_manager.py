import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.events import SandboxEvent
from services.sandbox_manager.keys import resource_key, session_key
from services.sandbox_manager.operations import (
    BytesRead,
    Call,
    Listed,
    ManagerClosing,
    Missing,
    OperationAborted,
    SessionRef,
)
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.support import BOUND, TENANT, FakeBackend, Rig, make_rig

KEY = session_key(TENANT, "s1")
IDLE = 900_000


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    return await make_rig(tmp_path / "sandboxes")


async def _bash(rig: Rig, command: str = "true", **more: Any) -> dict[str, Any]:
    async with asyncio.timeout(BOUND):
        outcome: dict[str, Any] = await rig.manager.run(rig.call(**more), "bash", {"command": command})
    return outcome


def _payloads(rig: Rig) -> list[dict[str, Any]]:
    return [dict(event.payload) for event in rig.events]


@pytest.mark.spec("sandbox-manager:19.2")
async def test_the_first_call_tells_creating_running_exec_and_leaves_a_record(rig: Rig) -> None:
    outcome = await _bash(rig)
    assert outcome == {"kind": "completed", "output": {"exitCode": 0, "stdout": "true\n", "stderr": ""}}
    creating, running, executed = rig.events
    common = {"backend": "virtual", "isolation": "process", "image": "python:3.13-slim", "network": "dev"}
    assert list(creating.payload.items()) == [("state", "creating"), *common.items()]
    assert list(running.payload.items()) == [("state", "running"), *common.items()]
    assert [member for member in executed.payload if member != "durationMs"] == [
        "tool", "command", "exitCode", "killed", "outcome",
    ]  # fmt: skip
    assert executed.payload["outcome"] == "completed"
    assert executed.record is None
    assert creating.record is not None
    assert running.record is not None
    assert (creating.record.state, running.record.state) == ("creating", "running")
    assert {(event.session_id, event.turn_id) for event in rig.events} == {("s1", "turn-1")}
    assert rig.backend.said == ["event creating", f"open {KEY}", "event running", "exec true", "event bash"]
    assert [record["state"] for record in rig.stored()] == ["running"]
    assert stat.S_IMODE(rig.path.stat().st_mode) == 0o600


async def test_the_record_is_on_the_disk_before_its_event(tmp_path: Path) -> None:
    rig = await make_rig(tmp_path)
    seen: list[str] = []

    async def emit(event: SandboxEvent) -> None:
        seen.append(rig.stored()[0]["state"])

    await rig.manager.run(Call(SessionRef("s1"), {}, emit=emit), "bash", {"command": "true"})
    assert seen == ["creating", "running", "running"]


async def test_an_open_workspace_is_used_again_without_a_word(rig: Rig) -> None:
    await _bash(rig)
    rig.events.clear()
    await _bash(rig, "ls")
    assert [event.type for event in rig.events] == ["sandbox.exec"]
    assert len(rig.backend.handles) == 1


@pytest.mark.spec("sandbox-manager:19.3")
async def test_after_an_idle_stop_the_next_call_reattaches(rig: Rig) -> None:
    await _bash(rig)
    await rig.manager.stop_idle(rig.clock.ms + IDLE)
    rig.events.clear()
    await _bash(rig)
    creating, running, _ = _payloads(rig)
    assert creating["reattach"] is True
    assert list(creating)[-1] == "reattach"
    assert "lost" not in running
    assert "reattach" not in running


async def test_a_workspace_that_had_to_be_made_again_is_said_to_be_lost(rig: Rig) -> None:
    await _bash(rig)
    await rig.manager.stop_idle(rig.clock.ms + IDLE)
    rig.backend.created = True
    rig.events.clear()
    await _bash(rig)
    running = _payloads(rig)[1]
    assert list(running)[-2:] == ["lost", "note"]
    assert running["lost"] is True


@pytest.mark.spec("sandbox-manager:19.4")
async def test_a_sweep_stops_at_the_idle_time_and_not_before(rig: Rig) -> None:
    await _bash(rig)
    rig.events.clear()
    await rig.manager.stop_idle(rig.clock.ms + IDLE - 1, rig.emit)
    assert rig.events == []
    assert not rig.backend.handles[0].stopped
    await rig.manager.stop_idle(rig.clock.ms + IDLE, rig.emit)
    (stopped,) = rig.events
    assert (stopped.type, stopped.turn_id, dict(stopped.payload)) == (
        "sandbox.state", None, {"state": "stopped", "backend": "virtual"},
    )  # fmt: skip
    assert stopped.record is not None
    assert stopped.record.image == "python:3.13-slim"
    assert [record["state"] for record in rig.stored()] == ["stopped"]
    assert rig.backend.handles[0].stopped
    assert rig.backend.handles[0].released


async def test_the_idle_time_is_that_of_the_first_caller(rig: Rig) -> None:
    await _bash(rig, spec={"idle": "1s"})
    await _bash(rig, spec={"idle": "1h"})
    await rig.manager.stop_idle(rig.clock.ms + 1000)
    assert rig.backend.handles[0].stopped


@pytest.mark.spec("sandbox-manager:19.5")
async def test_a_sweep_leaves_a_busy_workspace(rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    running = asyncio.create_task(_bash(rig, "wait"))
    await gate.entered.wait()
    async with asyncio.timeout(BOUND):
        await rig.manager.stop_idle(rig.clock.ms + IDLE)
    assert [record["state"] for record in rig.stored()] == ["running"]
    gate.open.set()
    await running
    assert not rig.backend.handles[0].stopped


async def test_a_stop_that_fails_is_still_recorded_and_told(rig: Rig) -> None:
    await _bash(rig)
    rig.backend.stop_fails = True
    rig.events.clear()
    await rig.manager.stop_idle(rig.clock.ms + IDLE, rig.emit)
    assert [record["state"] for record in rig.stored()] == ["stopped"]
    assert len(rig.events) == 1


@pytest.mark.spec("sandbox-manager:19.6")
async def test_the_first_sweep_after_a_restart_mends_records_in_silence(tmp_path: Path) -> None:
    before = await make_rig(tmp_path)
    await _bash(before)
    after = await make_rig(tmp_path)
    after.clock.ms += 5000
    was = after.stored()[0]
    assert was["state"] == "running"
    await after.manager.stop_idle(after.clock.ms, after.emit)
    assert after.stored() == [{**was, "state": "stopped"}]
    assert after.events == []


@pytest.mark.spec("sandbox-manager:19.8")
async def test_one_sandbox_of_two_sessions_is_used_in_turn_and_others_overlap(rig: Rig) -> None:
    first, other = rig.backend.gate("first"), rig.backend.gate("other")
    one = asyncio.create_task(_bash(rig, "first", owner="s1", sandbox="box"))
    await first.entered.wait()
    positions: list[int] = []
    two = asyncio.create_task(_bash(rig, "second", owner="s2", sandbox="box", waiting=positions.append))
    third = asyncio.create_task(_bash(rig, "other", owner="s1"))
    async with asyncio.timeout(BOUND):
        await other.entered.wait()
    assert "exec second" not in rig.backend.said
    assert positions == [1]
    other.open.set()
    await third
    first.open.set()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(one, two)
    said = rig.backend.said
    assert said.index("end first") < said.index("exec second")
    record = next(record for record in rig.stored() if record["key"] == resource_key(TENANT, "box"))
    assert (record["sessionId"], record["sandboxId"]) == ("s1", "box")


@pytest.mark.spec("sandbox-manager:19.9")
async def test_a_cancelled_call_in_the_queue_ends_in_its_turn(rig: Rig) -> None:
    gate, signal = rig.backend.gate("wait"), Signal()
    running = asyncio.create_task(_bash(rig, "wait"))
    await gate.entered.wait()
    queued = asyncio.create_task(_bash(rig, "late", signal=signal))
    await asyncio.sleep(0)
    signal.set("cancel")
    await asyncio.sleep(0)
    assert not queued.done()
    gate.open.set()
    assert (await running)["output"]["exitCode"] == 0
    with pytest.raises(OperationAborted, match="Turn cancelled"):
        await queued
    assert "exec late" not in rig.backend.said


@pytest.mark.spec("sandbox-manager:19.10")
async def test_with_an_unknown_preference_every_call_is_unavailable(tmp_path: Path) -> None:
    rig = await make_rig(tmp_path, preference="microsandbox")
    for _ in range(2):
        outcome = await _bash(rig)
        assert outcome["code"] == "sandbox.unavailable"
        assert "microsandbox" in outcome["message"]
    assert rig.events == []
    assert not rig.path.exists()


@pytest.mark.spec("sandbox-manager:19.11")
async def test_a_spec_that_can_t_be_met_leaves_no_trace(rig: Rig) -> None:
    outcome = await _bash(rig, spec={"network": {"allow": ["*.x.org"]}})
    assert outcome["code"] == "sandbox.unavailable"
    assert "virtual" in outcome["message"]
    assert "no suffixes" in outcome["message"]
    assert (rig.events, rig.backend.said, rig.path.exists()) == ([], [], False)


@pytest.mark.spec("sandbox-manager:19.12")
async def test_a_failed_start_is_told_recorded_and_tried_again(rig: Rig) -> None:
    rig.backend.fail_opening.append("no disk")
    outcome = await _bash(rig)
    assert outcome == {"kind": "failed", "code": "sandbox.start_failed", "message": "no disk"}
    assert _payloads(rig)[1:] == [{"state": "stopped", "backend": "virtual", "error": "no disk"}]
    assert [record["state"] for record in rig.stored()] == ["stopped"]
    rig.events.clear()
    assert (await _bash(rig))["kind"] == "completed"
    assert _payloads(rig)[0]["reattach"] is True


async def test_a_failed_start_of_a_read_changes_nothing_more(rig: Rig) -> None:
    rig.backend.fail_opening.append("no disk")
    outcome = await rig.manager.read_bytes(rig.call(), "a", 10)
    assert isinstance(outcome, dict)
    assert outcome["code"] == "sandbox.start_failed"
    assert [event.payload["state"] for event in rig.events] == ["creating"]
    assert [record["state"] for record in rig.stored()] == ["creating"]
    await rig.manager.stop_idle()
    assert [record["state"] for record in rig.stored()] == ["stopped"]


@pytest.mark.spec("sandbox-manager:19.17")
async def test_a_cancelled_command_gives_its_outcome_and_its_event(rig: Rig) -> None:
    gate, signal = rig.backend.gate("wait"), Signal()
    running = asyncio.create_task(_bash(rig, "wait", signal=signal))
    await gate.entered.wait()
    signal.set("cancel")
    async with asyncio.timeout(BOUND):
        outcome = await running
    assert outcome["output"] == {"exitCode": 130, "stdout": "part", "stderr": ""}
    assert _payloads(rig)[-1]["killed"] is True


async def test_what_a_command_throws_is_raised_and_drops_the_handle(rig: Rig) -> None:
    with pytest.raises(BackendError, match="the backend broke"):
        await _bash(rig, "throw")
    assert [event.type for event in rig.events] == ["sandbox.state", "sandbox.state"]
    assert rig.backend.handles[0].released
    rig.events.clear()
    await _bash(rig)
    assert _payloads(rig)[0]["reattach"] is True


async def test_what_a_read_throws_is_an_outcome_and_drops_the_handle(rig: Rig) -> None:
    outcome = await rig.manager.run(rig.call(), "grep", {"pattern": "x"})
    assert outcome == {"kind": "failed", "code": "sandbox.error", "message": "no grep"}
    assert rig.backend.handles[0].released
    assert "sandbox.exec" not in {event.type for event in rig.events}


async def test_what_an_aborted_read_throws_is_raised(rig: Rig) -> None:
    signal = Signal()

    async def begin(limit_ms: float) -> None:
        signal.set("cancel")

    with pytest.raises(BackendError):
        await rig.manager.run(rig.call(signal=signal, begin=begin), "grep", {"pattern": "x"})


async def test_long_commands_are_cut_in_events_only(rig: Rig) -> None:
    command = "x" * 600
    outcome = await _bash(rig, command)
    assert outcome["output"]["stdout"] == command + "\n"
    assert _payloads(rig)[-1]["command"] == "x" * 500


async def test_failed_tools_are_told_with_their_code(rig: Rig) -> None:
    await rig.manager.run(rig.call(), "edit", {"path": "a", "old_string": "x", "new_string": "y"})
    payload = _payloads(rig)[-1]
    assert list(payload)[:-1] == ["tool", "path", "outcome", "code"]
    assert (payload["outcome"], payload["code"]) == ("failed", "sandbox.not_found")


@pytest.mark.spec("sandbox-manager:19.27")
async def test_a_file_is_read_up_to_its_limit(rig: Rig) -> None:
    await rig.manager.run(rig.call(), "write", {"path": "a", "content": "12345"})
    rig.events.clear()
    assert await rig.manager.read_bytes(rig.call(), "a", 5) == BytesRead("/workspace/a", b"12345")
    outcome = await rig.manager.read_bytes(rig.call(), "./a", 4)
    assert isinstance(outcome, dict)
    assert outcome["code"] == "artifact.too_large"
    assert all(part in outcome["message"] for part in ("/workspace/a", "5", "4"))
    assert await rig.manager.read_bytes(rig.call(), "x/../b", 4) == Missing("/workspace/b")
    assert rig.events == []


@pytest.mark.spec("sandbox-manager:19.28")
async def test_listing_what_never_was_starts_nothing(rig: Rig) -> None:
    assert await rig.manager.list_files(rig.call(), "./outputs", 10) == Missing("./outputs")
    assert (rig.events, rig.backend.said, rig.path.exists()) == ([], [], False)
    await _bash(rig)
    assert isinstance(await rig.manager.list_files(rig.call(), "/workspace", 10), Listed)
    assert await rig.manager.list_files(rig.call(), "./outputs", 10) == Missing("/workspace/outputs")


async def test_listing_after_a_restart_reattaches(tmp_path: Path) -> None:
    before = await make_rig(tmp_path)
    await _bash(before)
    after = await make_rig(tmp_path)
    assert isinstance(await after.manager.list_files(after.call(), ".", 10), Listed)
    assert _payloads(after)[0]["reattach"] is True


async def test_removing_waits_for_the_queue_and_forgets_everything(rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    running = asyncio.create_task(_bash(rig, "wait"))
    await gate.entered.wait()
    removing = asyncio.create_task(rig.manager.remove(KEY))
    late = asyncio.create_task(_bash(rig, "late"))
    await asyncio.sleep(0)
    gate.open.set()
    rig.events.clear()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(running, removing, late)
    said = rig.backend.said
    assert said.index("end wait") < said.index(f"remove {KEY}") < said.index("exec late")
    assert not rig.backend.handles[0].stopped
    assert [event.payload.get("state") for event in rig.events] == [None, "creating", "running", None]
    assert "reattach" not in rig.events[1].payload


async def test_removing_everything_takes_folders_without_a_record_too(rig: Rig) -> None:
    rig.backend.kept["nylorun-tn_a-00000000000000aa"] = {}
    rig.backend.kept["nylorun-other-00000000000000aa"] = {}
    await _bash(rig)
    await _bash(rig, sandbox="box")
    await rig.manager.remove_all()
    assert list(rig.backend.kept) == ["nylorun-other-00000000000000aa"]
    assert rig.stored() == []
    await rig.manager.remove_sandbox("box")
    await rig.manager.remove(KEY)


async def test_closing_stops_all_and_records_it_without_events(rig: Rig) -> None:
    await _bash(rig)
    rig.events.clear()
    await rig.manager.close()
    assert rig.events == []
    assert [record["state"] for record in rig.stored()] == ["stopped"]
    assert rig.backend.handles[0].stopped
    with pytest.raises(ManagerClosing, match="Runtime is shutting down"):
        await _bash(rig)
    await rig.manager.stop_idle()
    assert rig.backend.said[-1] == "close"


async def test_closing_before_any_use_touches_nothing(rig: Rig) -> None:
    await rig.manager.close()
    assert rig.backend.said == []
    assert rig.backend.probes == 0


async def test_the_limit_of_a_call_counts_its_opening(rig: Rig) -> None:
    limits: list[float] = []

    async def begin(limit_ms: float) -> None:
        limits.append(limit_ms)

    for _ in range(2):
        await rig.manager.run(rig.call(begin=begin), "bash", {"command": "true", "timeout": 5})
    await rig.manager.run(rig.call(begin=begin), "glob", {"pattern": "x"})
    assert limits == [125_000, 5_000, 60_000]


async def test_a_call_that_never_begins_leaves_no_trace(rig: Rig) -> None:
    async def begin(limit_ms: float) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await _bash(rig, begin=begin)
    assert (rig.events, rig.backend.said, rig.path.exists()) == ([], [], False)
    assert (await _bash(rig))["kind"] == "completed"


async def test_a_disk_that_refuses_records_fails_the_call_and_not_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "sandboxes"
    rig = await make_rig(folder)
    folder.write_text("in the way")
    with pytest.raises(BackendError, match="record can't be written"):
        await _bash(rig)
    folder.unlink()
    assert (await _bash(rig))["kind"] == "completed"


async def test_200_workspaces_work_at_once(tmp_path: Path) -> None:
    rig = await make_rig(tmp_path, FakeBackend())
    gate = rig.backend.gate("wait")
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(_bash(rig, "wait", owner=f"s{number}"))
        async with rig.backend.entered(200):
            gate.open.set()
    assert len(rig.stored()) == 200
