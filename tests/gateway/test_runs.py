from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine.contract import EngineRefused, SegmentResult
from gateway.executors.contract import Discovery, ExecutionFailed, SandboxEvent
from gateway.runs.transcript_cache import TranscriptCache
from protocol.jsjson import Parsed
from protocol.transcript import Entry
from tests.gateway.support import (
    HELLO,
    NEVER,
    Refuse,
    at_once,
    effect,
    failing,
    for_ever,
    gateway,
    lease,
    logs,
    one_after_another,
    settle,
    until_aborted,
)
from tests.gateway.virtual_time import virtual_time

STATE = {"version": 1, "transcript": []}
EXECUTE = {"status": "execute"}
RECORD = {
    "key": "k",
    "sessionId": "s1",
    "backend": "virtual",
    "image": "i",
    "state": "running",
    "createdAt": "x",
    "updatedAt": "x",
}


def now() -> float:
    return asyncio.get_running_loop().time()


def nothing_to_do(segment: Any) -> Any:
    """A plan that ends at once with the transcript it was given and one entry more."""
    yield from ()
    return SegmentResult("completed", STATE, [*segment.transcript, Entry.from_value({"n": 1})])


def ends_with(result: SegmentResult) -> Any:
    def plan(segment: Any) -> Any:
        yield from ()
        return result

    return plan


# Leasing


@virtual_time
async def test_exactly_one_lease_is_outstanding_however_many_runs_are_held():
    async with gateway(one_after_another(effect("e1"))) as gw:
        for number in range(5):
            core = await gw.leased(run_id=f"r{number}", session_id=f"s{number}")
            await settle()
            assert len([frame for frame in core.inbox if frame.get("m") == "lease"]) == 1
        assert [run["runId"] for run in gw.link.facts()] == [f"r{number}" for number in range(5)]
        assert all(frame["p"] == {} for frame in core.frames if frame.get("m") == "lease")


@pytest.mark.spec("harness-api:10.7")
@pytest.mark.parametrize("how", ["refused", "invalid"])
@virtual_time
async def test_a_failed_lease_is_asked_again_after_100_ms(how):
    async with gateway() as gw:
        core = await gw.core.connection()
        asked = await core.expect("lease")
        with logs() as captured:
            started = now()
            if how == "refused":
                core.refuse(asked, "internal")
            else:
                core.answer(asked, lease(routing={"extra": 1}))
            await core.expect("lease")
        assert now() - started == pytest.approx(0.1)
        assert [entry["event"] for entry in captured] == ["harness lease failed"]
        assert gw.link.facts() == []


@virtual_time
async def test_with_all_room_taken_no_lease_is_asked_until_a_run_ends():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.host.max_runs = 1
        core = await gw.leased()
        await asyncio.sleep(1)
        assert [frame for frame in core.inbox if frame.get("m") == "lease"] == []
        core.answer(await core.expect("effect.intent"), {"status": "pending"})
        core.answer(await core.expect("turn.waiting"), {})
        await core.expect("lease")


@virtual_time
async def test_a_cancel_right_behind_its_lease_reaches_the_run():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        core.tell("cancel", runId="r1", reason="cancel")
        await core.expect("turn.failed", status="cancelled")
        assert core.methods() == ["turn.failed"]


@pytest.mark.spec("harness-api:10.5")
@virtual_time
async def test_messages_about_unknown_runs_change_nothing():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        core.tell("cancel", runId="r9", reason="cancel")
        core.tell("effect.resolved", runId="r9", effectId="e1", outcome={"value": 1})
        core.answer(await core.expect("effect.intent"), {"status": "completed", "outcome": {"value": 1}})
        await core.expect("turn.completed")


@pytest.mark.spec("harness-api:10.6")
@virtual_time
async def test_a_cancel_with_an_extra_key_is_dropped_and_the_run_goes_on():
    async with gateway(one_after_another(effect("e1"))) as gw:
        core = await gw.leased()
        core.tell("cancel", runId="r1", reason="cancel", extra=1)
        core.answer(await core.expect("effect.intent"), {"status": "completed", "outcome": {"value": 1}})
        await core.expect("turn.completed")


# Renewals and tokens


@virtual_time
async def test_a_lease_is_renewed_at_its_interval_from_the_start_whether_answered_or_not():
    async with gateway(one_after_another(effect("e1"))) as gw:
        renewed: list[float] = []
        gw.core.auto["lease.renew"] = lambda params: renewed.append(now()) or NEVER
        core = await gw.leased()
        started = now()
        await asyncio.sleep(35)
        core.ping()
        assert [at - started for at in renewed] == pytest.approx([10, 20, 30])


@pytest.mark.spec("harness-api:10.10")
@virtual_time
async def test_a_lost_lease_aborts_the_run_and_releases_it_without_an_output():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.core.auto["effect.outcome"] = Refuse("ownership_lost")
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        gw.core.auto["lease.renew"] = {"ok": False}
        await core.seen("lease.release", reason="ownership.lost")
        abort = gw.fake.executions[0].signal.abort
        assert abort is not None
        assert (abort.kind, abort.message) == ("ownership.lost", "Ownership lost")
        assert core.methods() == ["effect.intent", "effect.outcome", "lease.release"]


@pytest.mark.spec("harness-api:10.11")
@pytest.mark.parametrize("code", ["run_not_held", "internal"])
@virtual_time
async def test_a_refused_renewal_is_only_a_warning(code):
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.core.auto["lease.renew"] = Refuse(code, "hm")
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        with logs() as captured:
            await asyncio.sleep(25)
        assert [(entry["event"], entry["runId"], entry["error"]) for entry in captured] == [
            ("harness lease renewal failed", "r1", "hm")
        ] * 2
        core.answer(intent, {"status": "completed", "outcome": {"value": 1}})
        await core.expect("turn.completed")


@pytest.mark.spec("harness-api:10.12")
@virtual_time
async def test_only_a_new_token_is_passed_on():
    async with gateway(one_after_another(effect("e1"))) as gw:
        answers = [
            {"ok": True, "token": "one"},
            {"ok": True, "token": ""},
            {"ok": True},
            {"ok": True, "token": "two", "tokenExpiresAt": "2030-01-01T00:00:00.000Z"},
            {"ok": True, "token": "two"},
        ]
        gw.core.auto["lease.renew"] = lambda params: answers.pop(0)
        granted: list[str] = []
        grant = gw.host.tokens.grant

        def counted(session_id: str, epoch: int, token: str | None, expires_at: str | None) -> None:
            granted.append(f"{token}")
            grant(session_id, epoch, token, expires_at)

        gw.host.tokens.grant = counted  # type: ignore[method-assign]
        core = await gw.leased(grant={"token": "one", "epoch": 3})
        await core.expect("effect.intent")
        await asyncio.sleep(55)
        assert granted == ["one", "two"]
        assert gw.host.tokens.current("s1") == "two"
        assert gw.fake.grants == [("s1", 3, "two", "2030-01-01T00:00:00.000Z")]


@virtual_time
async def test_a_running_call_sees_the_newest_token():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        core = await gw.leased(grant={"token": "one"})
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        context = gw.fake.executions[0].run
        assert context.token() == "one"
        gw.core.auto["lease.renew"] = {"ok": True, "token": "two"}
        await asyncio.sleep(11)
        assert context.token() == "two"


@virtual_time
async def test_renewal_ends_with_the_run_and_a_late_answer_is_harmless():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.core.auto["lease.renew"] = NEVER
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        await asyncio.sleep(11)
        renewal = await core.seen("lease.renew")
        core.answer(intent, {"status": "completed", "outcome": {"value": 1}})
        core.answer(await core.expect("turn.completed"), {})
        await settle()
        with logs() as captured:
            core.refuse(renewal, "run_not_held")
            await asyncio.sleep(60)
        assert captured == []
        assert len([frame for frame in core.frames if frame.get("m") == "lease.renew"]) == 1


# What a run knows


@virtual_time
async def test_the_run_context_holds_what_the_lease_says():
    async with gateway(one_after_another(effect("e1")), timing=None) as gw:
        gw.core.auto["hello"] = {**HELLO, "sandbox": {"backend": "virtual"}}
        core = await gw.leased(
            grant={"epoch": 7},
            options={"fixtureModel": True},
            routing={
                "pluginRoots": {"p": "/x"},
                "mcpSnapshot": {"mcpTools": []},
                "sandbox": {"ownerId": "owner", "sandboxId": "box"},
            },
        )
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await core.expect("effect.outcome")
        run = gw.fake.executions[0].run
        assert (run.tenant_id, run.preference) == ("tn_1", "virtual")
        assert (run.run_id, run.session_id, run.turn_id, run.epoch) == ("r1", "s1", "t1", 7)
        assert (run.agent_id, run.fixture_model, run.plugin_roots) == ("a1", True, {"p": "/x"})
        assert run.mcp_snapshot == {"mcpTools": []}
        assert run.sandbox is not None
        assert (run.sandbox.owner_id, run.sandbox.sandbox_id) == ("owner", "box")
        assert run.token() is None


@virtual_time
async def test_the_engine_is_given_the_segment_as_it_came():
    async with gateway(at_once()) as gw:
        core = await gw.leased(
            sessionTools=[{"name": "x"}], options={"yieldAfter": {"steps": 3}}, checkpoint={"turnId": "t1"}
        )
        await core.expect("turn.completed")
        (segment,) = gw.segments
        assert segment.session_tools == [{"name": "x"}]
        assert segment.yield_after is not None
        assert (segment.yield_after.steps, segment.yield_after.ms) == (3, None)
        assert segment.checkpoint == {"turnId": "t1"}
        assert segment.manifest["id"] == "a1"


@virtual_time
async def test_runs_of_one_agent_share_its_manifest_and_snapshot():
    async with gateway(one_after_another(effect("e1"))) as gw:
        for number in range(2):
            core = await gw.leased(
                run_id=f"r{number}",
                session_id=f"s{number}",
                routing={"mcpSnapshot": {"mcpTools": [{"name": "x"}]}},
            )
        for _ in range(2):
            core.answer(await core.expect("effect.intent"), EXECUTE)
        await settle()
        first, second = gw.segments
        assert first.manifest is second.manifest
        runs = [execution.run for execution in gw.fake.executions]
        assert runs[0].root_manifest is runs[1].root_manifest is first.manifest
        assert runs[0].mcp_snapshot is runs[1].mcp_snapshot


# MCP

SERVERS = {"rootManifest": {"id": "a1", "capabilities": [{"id": "docs", "mcpServers": {"docs": {}}}]}}


@pytest.mark.spec("harness-api:10.31", "mcp-pool:11.3")
@virtual_time
async def test_the_first_recorded_snapshot_is_used_and_not_the_one_that_was_sent():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.discovery = Discovery({"mine": True}, [{"outcome": "failed"}])
        core = await gw.leased(routing=SERVERS)
        sent = await core.expect("session.mcp")
        assert sent["p"] == {
            "runId": "r1",
            "snapshot": {"mine": True},
            "diagnostics": [{"outcome": "failed"}],
        }
        core.answer(sent, {"snapshot": {"first": True}, "sessionTools": [{"name": "theirs"}]})
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await core.expect("effect.outcome")
        assert gw.segments[0].session_tools == [{"name": "theirs"}]
        assert gw.fake.executions[0].run.mcp_snapshot == {"first": True}
        ((kind, manifest_hash),) = gw.fake.prepared
        assert (kind, len(manifest_hash)) == ("discover", 64)


@virtual_time
async def test_a_reconnect_without_diagnostics_sends_nothing():
    async with gateway(at_once()) as gw:
        core = await gw.leased(routing={**SERVERS, "mcpSnapshot": {"old": 1}}, sessionTools=[1])
        await core.expect("turn.completed")
        assert gw.fake.prepared == [("reconnect", {"old": 1})]
        assert core.methods() == ["turn.completed"]
        assert gw.segments[0].session_tools == [1]


@virtual_time
async def test_diagnostics_of_a_reconnect_are_sent_without_a_snapshot():
    async with gateway(at_once()) as gw:
        gw.fake.reconnection = [{"outcome": "failed"}]
        core = await gw.leased(routing={**SERVERS, "mcpSnapshot": {"old": 1}})
        sent = await core.expect("session.mcp")
        assert sent["p"] == {"runId": "r1", "diagnostics": [{"outcome": "failed"}]}
        core.answer(sent, {"snapshot": {"old": 1}, "sessionTools": [2]})
        await core.expect("turn.completed")
        assert gw.segments[0].session_tools == [2]


@pytest.mark.spec("mcp-pool:11.1")
@virtual_time
async def test_agents_without_servers_and_flows_prepare_nothing():
    async with gateway(at_once()) as gw:
        core = await gw.leased()
        core.answer(await core.expect("turn.completed"), {})
        await gw.leased(run_id="r2", engine="flow", routing=SERVERS)
        await core.expect("turn.completed", runId="r2")
        assert gw.fake.prepared == []
        assert "session.mcp" not in core.methods()


@virtual_time
async def test_a_failed_discovery_ends_the_run_as_thrown():
    async with gateway(at_once()) as gw:
        gw.fake.discovery = ExecutionFailed("the pool is gone")
        core = await gw.leased(routing=SERVERS)
        output = await core.expect("turn.failed")
        assert output["p"] == {"runId": "r1", "thrown": {"message": "the pool is gone"}}


@virtual_time
async def test_a_refused_session_mcp_ends_the_run_with_its_code():
    async with gateway(at_once()) as gw:
        core = await gw.leased(routing=SERVERS)
        core.refuse(await core.expect("session.mcp"), "ownership_lost", "another")
        output = await core.expect("turn.failed")
        assert output["p"]["thrown"] == {"code": "ownership_lost", "message": "another"}


@virtual_time
async def test_a_cancel_while_preparing_is_reported_with_its_own_message():
    async with gateway(at_once()) as gw:
        core = await gw.leased(routing=SERVERS)
        sent = await core.expect("session.mcp")
        core.tell("cancel", runId="r1", reason="cancel")
        core.refuse(sent, "turn_cancelled")
        output = await core.expect("turn.failed")
        assert output["p"]["thrown"] == {"message": "Turn cancelled"}


# Outputs


@virtual_time
async def test_a_segment_that_cannot_start_is_thrown_with_its_code():
    def refuse(kind: str, segment: Any) -> Any:
        raise EngineRefused("execution.incompatible", "another engine")

    async with gateway(make_engine=refuse) as gw:
        core = await gw.leased()
        output = await core.expect("turn.failed")
        assert output["p"]["thrown"] == {"code": "execution.incompatible", "message": "another engine"}


@virtual_time
async def test_a_fault_of_the_engine_is_thrown_without_a_word_of_the_fault():
    def broken(segment: Any) -> Any:
        yield [effect("e1")]
        raise KeyError("secret")

    async with gateway(broken) as gw:
        core = await gw.leased()
        with logs() as captured:
            core.answer(await core.expect("effect.intent"), {"status": "completed", "outcome": {"value": 1}})
            output = await core.expect("turn.failed")
        assert "secret" not in str(output)
        assert [entry["event"] for entry in captured] == ["harness_engine_failed"]


@virtual_time
async def test_a_refused_output_is_swallowed_and_the_next_run_works():
    async with gateway(at_once()) as gw:
        core = await gw.leased()
        core.refuse(await core.expect("turn.completed"), "internal")
        await gw.leased(run_id="r2")
        await core.expect("turn.completed", runId="r2")
        assert core.methods() == ["turn.completed", "turn.completed"]


@pytest.mark.spec("harness-api:10.35")
@virtual_time
async def test_an_output_larger_than_a_frame_fails_its_run_instead_of_the_connection(monkeypatch):
    monkeypatch.setattr("gateway.harness_api.channel.Channel._too_large", lambda self, text: "xxxx" in text)
    async with gateway(ends_with(SegmentResult("completed", STATE, [], output="xxxx"))) as gw:
        core = await gw.leased()
        output = await core.expect("turn.failed")
        assert "larger than" in output["p"]["thrown"]["message"]
        core.answer(output, {})
        await gw.leased(run_id="r2")
        await core.expect("turn.failed", runId="r2")
        assert len(gw.core.ends) == 1


@virtual_time
async def test_an_output_waits_for_what_is_still_in_flight():
    """An engine may be done while an effect is not: the run's last request comes after it."""

    class Hasty:
        def start(self, now_ms: float) -> Any:
            from gateway.engine.contract import Step

            return Step(effects=(effect("e1"),), result=SegmentResult("completed"))

        def resolve(self, *_: Any) -> Any:
            raise AssertionError("it is done")

        def abort(self, abort: Any) -> Any:
            raise AssertionError("it is done")

    async with gateway(make_engine=lambda kind, segment: Hasty()) as gw:
        core = await gw.leased()
        intent = await core.expect("effect.intent")
        assert core.methods() == ["effect.intent"]
        core.answer(intent, {"status": "completed", "outcome": {"value": 1}})
        await core.expect("turn.completed")


# The transcript


def transcript_texts(gw: Any, number: int) -> list[str]:
    return [entry.text for entry in gw.segments[number].transcript]


async def run_once(gw: Any, run_id: str, cursor: int, answer: Any, **changes: Any) -> Any:
    core = gw.core.ends[-1]
    core.answer(
        await core.expect("lease"),
        lease(run_id, checkpoint={"state": STATE}, transcript={"cursor": cursor}, **changes),
    )
    read = None
    await settle()
    for frame in list(core.inbox):
        if frame.get("m") == "transcript.read":
            read = frame
            core.inbox.remove(frame)
            core.answer(frame, {"cursor": 99, "entries": [{"b": 1, "a": 1.5}]})
    await settle()
    for frame in list(core.inbox):
        if frame.get("m", "").startswith("turn."):
            core.inbox.remove(frame)
            core.answer(frame, answer)
    await settle()
    return read


@pytest.mark.spec("harness-api:10.22")
@virtual_time
async def test_a_transcript_is_read_once_and_then_found_at_its_cursor():
    async with gateway(nothing_to_do) as gw:
        await gw.core.connection()
        assert await run_once(gw, "r1", 5, {"cursor": 6}) is not None
        assert transcript_texts(gw, 0) == ['{"b":1,"a":1.5}']
        assert await run_once(gw, "r2", 6, {"cursor": 7}) is None
        assert transcript_texts(gw, 1) == ['{"b":1,"a":1.5}', '{"n":1}']
        assert await run_once(gw, "r3", 6, {"cursor": 8}) is not None, "the cursor differs"


@pytest.mark.spec("harness-api:10.22")
@pytest.mark.parametrize("answer", [{}, NEVER])
@virtual_time
async def test_a_transcript_that_core_did_not_keep_is_read_again(answer):
    async with gateway(nothing_to_do) as gw:
        core = await gw.core.connection()
        await run_once(gw, "r1", 5, {"cursor": 6})
        if answer is NEVER:
            gw.core.auto["turn.completed"] = Refuse("internal")
        await run_once(gw, "r2", 6, answer)
        assert await run_once(gw, "r3", 6, {}) is not None
        assert core.methods().count("transcript.read") == 2


@pytest.mark.spec("harness-api:10.22")
@pytest.mark.parametrize("accepted", [True, False])
@virtual_time
async def test_after_waiting_the_starting_transcript_is_kept_even_when_the_report_failed(accepted):
    async with gateway(ends_with(SegmentResult("waiting", effect_ids=["e"]))) as gw:
        await gw.core.connection()
        gw.core.auto["turn.waiting"] = {} if accepted else Refuse("internal")
        assert await run_once(gw, "r1", 5, {}) is not None
        assert await run_once(gw, "r2", 5, {}) is None


@pytest.mark.spec("harness-api:10.22")
@virtual_time
async def test_after_a_thrown_run_the_transcript_is_read_again():
    def sometimes(segment: Any) -> Any:
        if len(gw.segments) == 1:
            raise EngineRefused(None, "no")
        yield from ()
        return SegmentResult("waiting", effect_ids=["e"])

    async with gateway(sometimes) as gw:
        await gw.core.connection()
        gw.core.auto["turn.waiting"] = {}
        assert await run_once(gw, "r1", 5, {}) is not None
        assert await run_once(gw, "r2", 5, {}) is not None
        assert await run_once(gw, "r3", 5, {}) is None


@pytest.mark.spec("harness-api:10.22")
@virtual_time
async def test_a_reconnect_forgets_every_transcript():
    async with gateway(nothing_to_do) as gw:
        core = await gw.core.connection()
        await run_once(gw, "r1", 5, {"cursor": 6})
        core.close()
        await gw.core.connection(2)
        assert await run_once(gw, "r2", 6, {}) is not None


@virtual_time
async def test_a_released_run_leaves_the_cache_as_it_was():
    async with gateway(nothing_to_do) as gw:
        core = await gw.core.connection()
        await run_once(gw, "r1", 5, {"cursor": 6})
        gw.plan = one_after_another(effect("e1"))
        core.answer(
            await core.expect("lease"), lease("r2", checkpoint={"state": STATE}, transcript={"cursor": 6})
        )
        intent = await core.expect("effect.intent")
        core.tell("cancel", runId="r2", reason="shutdown")
        core.refuse(intent, "internal")
        await core.seen("lease.release")
        gw.plan = nothing_to_do
        assert await run_once(gw, "r3", 6, {}) is None


@pytest.mark.spec("harness-api:10.24")
@pytest.mark.parametrize(
    ("checkpoint", "reads"),
    [({"state": {}}, True), ({"state": None}, False), ({}, False), ({"state": []}, False)],
)
@virtual_time
async def test_only_a_state_object_has_a_transcript_to_load(checkpoint, reads):
    async with gateway(at_once()) as gw:
        gw.core.auto["transcript.read"] = {"cursor": 1, "entries": []}
        core = await gw.leased(checkpoint=checkpoint)
        await core.expect("turn.completed")
        assert ("transcript.read" in core.methods()) is reads


@pytest.mark.parametrize("sent", [{}, {"transcript": []}, {"transcript": [1]}, {"transcript": None}])
@virtual_time
async def test_the_engine_gets_a_state_with_an_empty_transcript_whatever_core_sent(sent):
    given: list[Any] = []

    def plan(segment: Any) -> Any:
        given.append(segment.checkpoint)
        return nothing_to_do(segment)

    async with gateway(plan) as gw:
        gw.core.auto["transcript.read"] = {"cursor": 1, "entries": []}
        core = await gw.leased(checkpoint={"turnId": "t1", "state": {"version": 1, **sent}})
        await core.expect("turn.completed")
    assert given == [{"turnId": "t1", "state": {"version": 1, "transcript": []}}]


@virtual_time
async def test_a_flow_reads_no_transcript_and_keeps_none():
    async with gateway(ends_with(SegmentResult("waiting", effect_ids=["e"]))) as gw:
        gw.core.auto["turn.waiting"] = {}
        core = await gw.leased(engine="flow", checkpoint={"state": STATE}, transcript={"cursor": 5})
        await core.seen("turn.waiting")
        assert core.methods() == ["turn.waiting"]
        assert await run_once(gw, "r2", 5, {}) is not None


@virtual_time
async def test_a_refused_transcript_ends_the_run_as_thrown_with_its_code():
    async with gateway(at_once()) as gw:
        gw.core.auto["transcript.read"] = Refuse("run_not_held", "gone")
        core = await gw.leased(checkpoint={"state": STATE})
        output = await core.expect("turn.failed")
        assert output["p"]["thrown"] == {"code": "run_not_held", "message": "gone"}


@virtual_time
async def test_the_size_of_a_kept_transcript_is_estimated_from_what_was_known(monkeypatch):
    kept: list[tuple[int, int]] = []
    put = TranscriptCache.put

    def noted(self: TranscriptCache, session_id: str, cursor: int, entries: Any, size: int) -> None:
        kept.append((cursor, size))
        put(self, session_id, cursor, entries, size)

    monkeypatch.setattr(TranscriptCache, "put", noted)
    async with gateway(nothing_to_do) as gw:
        await gw.core.connection()
        await run_once(gw, "r1", 5, {"cursor": 6})
        await run_once(gw, "r2", 6, {"cursor": 7})
        # [{"b":1,"a":1.5},{"n":1}] is measured; then [{"n":1}] is added to what is known.
        assert kept == [(6, 25), (7, 25 + 9)]


# Sandbox events


def emits(*events: SandboxEvent) -> Any:
    async def execute(effect: Any, run: Any, signal: Any, rejoin: bool) -> Parsed:
        for event in events:
            await run.claim_event(event)
        return Parsed("done", plain=True)

    return execute


@pytest.mark.spec("harness-api:10.30")
@virtual_time
async def test_events_are_claimed_one_after_another_before_the_outcome():
    state = SandboxEvent("owner", "t1", "sandbox.state", {"state": "running"}, RECORD)
    executed = SandboxEvent("owner", None, "sandbox.exec", {"command": "ls"})
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = emits(state, executed)
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        claim = await core.expect("event")
        assert claim["p"] == {
            "runId": "r1",
            "sessionId": "owner",
            "turnId": "t1",
            "type": "sandbox.state",
            "payload": {"state": "running"},
            "record": RECORD,
        }
        await settle()
        assert core.methods() == ["effect.intent", "event"]
        core.answer(claim, {})
        with logs() as captured:
            core.refuse(await core.expect("event", turnId=None), "run_not_held", "not yours")
            await core.expect("effect.outcome", value="done")
        assert [(entry["event"], entry["sessionId"], entry["type"]) for entry in captured] == [
            ("harness sandbox event not claimed", "owner", "sandbox.exec")
        ]


@pytest.mark.parametrize(
    "event",
    [
        SandboxEvent("s1", "t1", "sandbox.nap", {}),
        SandboxEvent("", "t1", "sandbox.exec", {}),
        SandboxEvent("s1", "t1", "sandbox.state", {}, {**RECORD, "state": "odd"}),
        SandboxEvent("s1", "t1", "sandbox.state", {}, {**RECORD, "extra": 1}),
    ],
)
@virtual_time
async def test_an_event_that_the_wire_refuses_is_logged_dropped_and_fails_nothing(event):
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = emits(event)
        core = await gw.leased()
        with logs() as captured:
            core.answer(await core.expect("effect.intent"), EXECUTE)
            await core.expect("effect.outcome", value="done")
        assert core.methods() == ["effect.intent", "effect.outcome"]
        assert [entry["event"] for entry in captured] == ["harness sandbox event not claimed"]


@virtual_time
async def test_a_claim_ends_with_its_connection_and_without_one_is_dropped():
    claimed = asyncio.Event()

    async def execute(effect: Any, run: Any, signal: Any, rejoin: bool) -> Parsed:
        event = SandboxEvent("s1", "t1", "sandbox.exec", {})
        await run.claim_event(event)
        await run.claim_event(event)
        claimed.set()
        return Parsed(None, plain=True)

    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = execute
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await core.expect("event")
        core.close()
        await asyncio.wait_for(claimed.wait(), 5)
        assert core.methods().count("event") == 1


# Losing the connection


@pytest.mark.spec("harness-api:10.18")
@virtual_time
async def test_after_a_lost_connection_the_next_run_rejoins_or_is_uncertain():
    async with gateway(at_once(effect("e1", "model"), effect("e2"))) as gw:
        gw.fake.model_recovers = True
        gw.fake.behaviours |= {"e1": until_aborted, "e2": until_aborted}
        core = await gw.leased()
        for _ in range(2):
            core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e2"].wait()
        with logs() as captured:
            core.close()
            second = await gw.leased(number=2, run_id="r2")
        assert {entry["event"] for entry in captured} <= {
            "harness_connection_lost",
            "harness_connected",
            "harness_release_failed",
        }
        aborts = {execution.signal.abort for execution in gw.fake.executions}
        (abort,) = aborts
        assert (abort.kind, abort.message) == ("shutdown", "The Harness API connection closed")
        gw.fake.behaviours["e1"] = "found again"
        first = await second.expect("effect.intent")
        second.answer(first, {**EXECUTE, "rejoin": True})
        second.answer(await second.expect("effect.intent"), {"status": "uncertain"})
        report = await second.expect("effect.outcome", effectId="e1", value="found again")
        second.answer(report, {"status": "completed", "outcome": {"value": "found again"}})
        await second.expect("turn.waiting", status="uncertain", effectIds=["e2"])
        assert gw.fake.executions[2].rejoin


@virtual_time
async def test_a_run_that_ignores_the_loss_holds_the_backoff_up_for_5_s_and_is_left_behind():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = for_ever
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        await gw.fake.started["e1"].wait()
        lost = now()
        core.close()
        await gw.core.connection(2)
        assert gw.core.dials[1] - lost == pytest.approx(5.5)
        assert len(gw.host.tasks) == 2


@pytest.mark.spec("harness-api:10.26")
@virtual_time
async def test_another_gateway_finishes_what_the_first_one_lost():
    plan = one_after_another(effect("e1", "model"))
    async with gateway(plan) as first, gateway(plan) as second:
        first.fake.behaviours["e1"] = until_aborted
        a = await first.leased()
        a.answer(await a.expect("effect.intent"), EXECUTE)
        await first.fake.started["e1"].wait()
        a.close()
        b = await second.leased(run_id="r2", grant={"epoch": 2})
        b.answer(await b.expect("effect.intent", runId="r2"), {**EXECUTE, "rejoin": True})
        report = await b.expect("effect.outcome", runId="r2", value="ok")
        b.answer(report, {"status": "completed", "outcome": {"value": "ok"}})
        await b.expect("turn.completed", runId="r2")
        assert "lease.release" not in a.methods()


@pytest.mark.spec("harness-api:10.27")
@virtual_time
async def test_an_output_is_sent_once_and_nothing_follows_a_release():
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = failing("x")
        gw.core.auto["effect.outcome"] = {"status": "uncertain"}
        core = await gw.leased()
        core.answer(await core.expect("effect.intent"), EXECUTE)
        output = await core.expect("turn.waiting")
        core.tell("cancel", runId="r1", reason="cancel")
        core.tell("cancel", runId="r1", reason="shutdown")
        await settle()
        core.answer(output, {})
        await asyncio.sleep(30)
        assert core.methods() == ["effect.intent", "effect.outcome", "turn.waiting"]
        await gw.leased(run_id="r2")
        core.answer(await core.expect("effect.intent"), EXECUTE)
        core.tell("cancel", runId="r2", reason="shutdown")
        await asyncio.sleep(30)
        assert core.methods()[3:] == ["effect.intent", "effect.outcome", "lease.release"]
