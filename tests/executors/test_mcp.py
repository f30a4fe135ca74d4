"""MCP tools over gRPC: local ones start at most once, remote ones are keyed; aborts by kind (mcp-pool 8)."""

import asyncio
import json

import grpc
import pytest
from whippletree.v1 import common_pb2, mcp_pool_pb2

from gateway.engine.contract import AbortKind
from gateway.executors import kept_cancels
from gateway.executors.contract import AbortSignal, ExecutionFailed, RunAborted
from gateway.executors.kept_cancels import KeptCancels
from services.common.errors import Refused, invalid, unavailable
from tests.common.support import BOUND_S, TOKEN, until
from tests.executors.support import (
    ACCEPTED,
    MANIFEST,
    SNAPSHOT,
    McpDouble,
    abort,
    aborted,
    model_effect,
    run_of,
    tool_effect,
    world,
)

FINISHING = [AbortKind.SHUTDOWN, AbortKind.DEADLINE, AbortKind.OWNERSHIP_LOST]
DONE = {"kind": "completed", "output": "done"}


async def execute(made, effect=None, run=None, signal=None, rejoin=False):
    async with asyncio.timeout(BOUND_S):
        return await made.executors.tools.execute(
            effect or tool_effect(), run or run_of(), signal or AbortSignal(), rejoin
        )


async def fails(made, **given):
    with pytest.raises(ExecutionFailed) as caught:
        await execute(made, **given)
    return str(caught.value)


def queued(position=0):
    return mcp_pool_pb2.ToolCallReply(queued=common_pb2.Queued(position=position))


ACCEPTED_LATE = mcp_pool_pb2.ToolCallReply(accepted=common_pb2.Accepted(limit_ms=5000))


# The conversation.


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_a_local_tool_is_called_with_what_any_replica_needs_and_begins_once(way):
    async with world(way=way) as made:
        outcome = await execute(made)
        assert outcome.value == DONE
        [request] = made.mcp.calls
        assert request.server_tool_name == "add"
        assert request.arguments.text == '{"b":1,"a":2}'
        assert (request.server.capability_id, request.server.server_name) == ("tools", "srv")
        assert not request.server.HasField("agent_id")
        assert json.loads(request.server.declaration.text)["command"] == "x"
        assert request.server.plugin_root == "/plugins/tools"
        assert request.effect.effect_id == "e"
        assert made.mcp.starts == ["e"]
        assert made.mcp.metadata[0]["x-nylorun-run-token"] == "token-1"


@pytest.mark.spec("mcp-pool:11.42")
async def test_a_tool_of_a_child_agent_is_found_by_the_agent_of_the_effect():
    child = {
        "id": "child",
        "capabilities": [{"id": "cap", "mcpServers": {"srv": {"type": "stdio", "command": "c"}}}],
    }
    manifest = {"capabilities": [{"id": "root", "tools": [{"name": "ask", "agent": child}]}]}
    record = {
        "agentId": "child",
        "capabilityId": "cap",
        "serverName": "srv",
        "serverToolName": "t",
        "name": "srv__t",
    }
    run = run_of(
        root_manifest=manifest,
        mcp_snapshot={"mcpTools": [record]},
        plugin_roots={"child/cap": "/plugins/child"},
    )
    async with world() as made:
        await execute(made, tool_effect("srv__t", "cap", agent={"id": "child"}), run)
        [request] = made.mcp.calls
        assert request.server.agent_id == "child"
        assert request.server.plugin_root == "/plugins/child"
        await fails(made, effect=tool_effect("srv__t", "cap"), run=run)
        assert len(made.mcp.calls) == 1


async def test_a_call_that_waits_longer_than_the_silence_goes_on_while_it_says_queued():
    async with world(silence=0.25) as made:

        async def wait(request, context):
            await context.send_initial_metadata(())
            for _ in range(4):
                await context.write(queued())
                await asyncio.sleep(0.12)
            await context.write(ACCEPTED_LATE)
            assert await made.mcp.started(context, request)
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"late"')))

        made.mcp.behaviour = wait
        assert (await execute(made)).value == "late"
        assert made.mcp.starts == ["e"]
        assert len(made.mcp.calls) == 1


async def test_an_answer_is_given_before_the_status_and_the_call_is_over_with_it():
    async with world() as made, asyncio.timeout(BOUND_S):
        release, released = asyncio.Event(), asyncio.Event()

        async def linger(request, context):
            await context.send_initial_metadata(ACCEPTED)
            assert await made.mcp.started(context, request)
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"early"')))
            await release.wait()
            released.set()

        made.mcp.behaviour = linger
        assert (await execute(made)).value == "early"
        [replica] = made.executors.mcp._replicas.replicas
        assert replica.in_flight == 1
        release.set()
        await until(lambda: replica.in_flight == 0)
        assert released.is_set()


async def test_a_status_that_never_comes_is_given_up():
    async with world(give_up=0.2) as made, asyncio.timeout(BOUND_S):
        cancelled = asyncio.Event()

        async def stay(request, context):
            await context.send_initial_metadata(ACCEPTED)
            assert await made.mcp.started(context, request)
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"early"')))
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        made.mcp.behaviour = stay
        assert (await execute(made)).value == "early"
        [replica] = made.executors.mcp._replicas.replicas
        await cancelled.wait()
        await until(lambda: replica.in_flight == 0)


async def test_an_outcome_that_is_kept_comes_without_a_second_beginning():
    async with world() as made:

        async def kept(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await context.read()
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"kept"')))

        made.mcp.behaviour = kept
        for _ in range(20):
            assert (await execute(made)).value == "kept"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ({"raised": common_pb2.Raised(message="The server is gone.")}, "The server is gone."),
        ({"outcome": common_pb2.Json(text="nonsense")}, "not JSON"),
        ({"aborted": common_pb2.Aborted(kind=common_pb2.ABORT_KIND_SHUTDOWN)}, "stopped by the service"),
        ({}, "no result"),
    ],
)
async def test_an_end_without_an_outcome_is_a_failed_execution(end, says):
    async with world() as made:

        async def finish(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            await context.write(made.mcp.end(**end))

        made.mcp.behaviour = finish
        assert says in await fails(made)
        assert len(made.mcp.calls) == 1


async def test_a_server_that_the_manifest_lacks_is_not_called():
    async with world() as made:
        assert "not declared" in await fails(made, effect=tool_effect("gone__x"))
        assert made.mcp.calls == []


# Losses.


@pytest.mark.parametrize("when", ["at the request", "while queued"])
async def test_a_pool_that_dies_before_start_is_asked_again_and_the_work_begins_once(when):
    async with world() as made:

        async def hang(request, context):
            if when == "while queued":
                await context.send_initial_metadata(())
                await context.write(queued())
            await asyncio.Event().wait()

        made.mcp.behaviour = hang
        pending = asyncio.ensure_future(execute(made))
        await made.mcp.arrived.wait()
        await made.ports.kill(made.addresses["mcp-pool"])
        successor = McpDouble()
        await made.restart(successor)
        assert (await pending).value == DONE
        assert made.mcp.starts + successor.starts == ["e"]


async def test_a_pool_that_dies_after_start_is_never_asked_again():
    async with world() as made:

        async def hang(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            await asyncio.Event().wait()

        made.mcp.behaviour = hang
        pending = asyncio.ensure_future(fails(made))
        await made.mcp.began.wait()
        await made.ports.kill(made.addresses["mcp-pool"])
        successor = McpDouble()
        await made.restart(successor)
        assert "may have run" in await pending
        assert made.mcp.starts == ["e"]
        assert successor.calls == []


@pytest.mark.parametrize(
    "status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN]
)
async def test_any_transport_failure_after_start_is_uncertain_and_not_sent_again(status):
    async with world() as made:

        async def fail(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            raise Refused(status, "x")

        made.mcp.behaviour = fail
        assert "may have run" in await fails(made)
        assert len(made.mcp.calls) == 1


async def test_a_refusal_after_start_that_says_nothing_started_may_be_sent_again():
    async with world() as made:

        async def refuse_once(request, context):
            await context.send_initial_metadata(ACCEPTED)
            if len(made.mcp.calls) == 1:
                await context.read()
                raise unavailable("the turn was lost")
            await made.mcp.started(context, request)
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"second"')))

        made.mcp.behaviour = refuse_once
        assert (await execute(made)).value == "second"
        assert made.mcp.starts == ["e"]


async def test_a_stream_that_ends_without_a_word_before_start_is_sent_again():
    async with world() as made:

        async def leave_once(request, context):
            await context.send_initial_metadata(())
            if len(made.mcp.calls) > 1:
                await context.write(ACCEPTED_LATE)
                await made.mcp.started(context, request)
                await context.write(made.mcp.end(outcome=common_pb2.Json(text='"second"')))

        made.mcp.behaviour = leave_once
        assert (await execute(made)).value == "second"
        assert made.mcp.starts == ["e"]


async def test_a_pool_that_stays_away_means_that_nothing_started():
    async with world(resend_for=0.3) as made:
        await made.ports.kill(made.addresses["mcp-pool"])
        text = await fails(made)
        assert "may have run" not in text


async def test_a_pool_that_refuses_for_good_is_asked_for_the_whole_time_and_no_longer():
    async with world(resend_for=0.3) as made:

        async def refuse(request, context):
            raise unavailable("full")

        made.mcp.behaviour = refuse
        assert "full" in await fails(made)
        assert len(made.mcp.calls) > 2


async def test_an_invalid_request_is_not_sent_again():
    async with world() as made:

        async def refuse(request, context):
            raise invalid("this effect id stands for another call")

        made.mcp.behaviour = refuse
        assert "another call" in await fails(made)
        assert len(made.mcp.calls) == 1


@pytest.mark.parametrize("words", [0, 1])
async def test_a_peer_that_goes_silent_before_start_is_lost_and_the_call_sent_again(words):
    async with world(silence=0.2) as made:

        async def silent_once(request, context):
            if len(made.mcp.calls) == 1:
                await context.send_initial_metadata(())
                for _ in range(words):
                    await context.write(queued())
                await asyncio.Event().wait()
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"second"')))

        made.mcp.behaviour = silent_once
        assert (await execute(made)).value == "second"
        assert made.mcp.starts == ["e"]


async def test_a_peer_that_goes_silent_after_start_is_given_up_after_its_limit_and_never_asked_again():
    async with world(give_up=0.1) as made:

        async def silent(request, context):
            await context.send_initial_metadata(
                (("x-whippletree-accepted", "1"), ("x-whippletree-limit-ms", "150"))
            )
            await made.mcp.started(context, request)
            await asyncio.Event().wait()

        made.mcp.behaviour = silent
        assert "may have run" in await fails(made)
        assert made.mcp.starts == ["e"]
        assert len(made.mcp.calls) == 1


async def test_an_answer_over_the_message_limit_is_a_failed_outcome_that_names_the_limit():
    async with world() as made:

        async def huge(request, context):
            await context.send_initial_metadata(
                (("x-whippletree-accepted", "1"), ("x-whippletree-limit-ms", "60000"))
            )
            await made.mcp.started(context, request)
            await context.write(
                made.mcp.end(outcome=common_pb2.Json(text='"' + "x" * (66 * 1024 * 1024) + '"'))
            )

        made.mcp.behaviour = huge
        outcome = await execute(made)
        assert (outcome.value["kind"], outcome.value["code"]) == ("failed", "mcp.too-large")
        assert "limit" in outcome.value["message"]
        made.mcp.behaviour = None
        assert (await execute(made, tool_effect(effect_id="next"))).value == DONE


async def test_a_wrong_bearer_is_told_and_takes_the_service_out():
    async with world(resend_for=0.2, wait=False, bearers={}) as made:
        assert made.connected.health.missing() == ["model-executor", "mcp-pool", "sandbox-manager"]
        await until(
            lambda: "bearer" in made.connected.health.services()["mcp-pool"]["replicas"][0].get("problem", "")
        )
        await fails(made)


# Aborts.


async def test_a_cancel_in_force_means_no_call_and_other_kinds_are_ignored():
    async with world() as made:
        with pytest.raises(RunAborted):
            await execute(made, signal=aborted(AbortKind.CANCEL))
        assert made.mcp.calls == []
        for kind in FINISHING:
            assert (await execute(made, tool_effect(effect_id=kind), signal=aborted(kind))).value == DONE


@pytest.mark.parametrize("when", ["at the request", "while queued"])
async def test_a_cancel_before_start_ends_the_call_and_nothing_begins(when):
    async with world() as made:
        left = asyncio.Event()

        async def hang(request, context):
            if when == "while queued":
                await context.send_initial_metadata(())
                await context.write(queued())
            made.mcp.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        made.mcp.behaviour = hang
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.mcp.began.wait()
        abort(signal, AbortKind.CANCEL)
        with pytest.raises(RunAborted) as caught:
            await pending
        assert caught.value.abort.kind is AbortKind.CANCEL
        async with asyncio.timeout(BOUND_S):
            await left.wait()
        assert made.mcp.starts == []


@pytest.mark.spec("mcp-pool:11.26")
async def test_a_cancel_after_start_crosses_in_band_and_discards_the_effect():
    async with world() as made:

        async def cancellable(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            kind = await made.mcp.next_abort(context)
            await context.write(made.mcp.end(aborted=common_pb2.Aborted(kind=kind)))

        made.mcp.behaviour = cancellable
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.mcp.began.wait()
        abort(signal, AbortKind.CANCEL)
        with pytest.raises(RunAborted):
            await pending
        assert made.mcp.aborts == [common_pb2.ABORT_KIND_CANCEL]


async def test_an_outcome_that_crosses_the_cancel_is_returned():
    async with world() as made:

        async def crossing(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            await made.mcp.next_abort(context)
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"crossed"')))

        made.mcp.behaviour = crossing
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.mcp.began.wait()
        abort(signal, AbortKind.CANCEL)
        assert (await pending).value == "crossed"


async def test_a_pool_that_ignores_a_cancel_does_not_hold_the_run_up():
    async with world(abort_answer=0.2) as made:

        async def deaf(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            await asyncio.Event().wait()

        made.mcp.behaviour = deaf
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.mcp.began.wait()
        abort(signal, AbortKind.CANCEL)
        with pytest.raises(RunAborted):
            await pending


@pytest.mark.parametrize("kind", FINISHING)
@pytest.mark.spec("mcp-pool:11.26")
async def test_other_aborts_let_a_local_call_finish_and_its_outcome_counts(kind):
    async with world() as made:

        async def slow(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.mcp.started(context, request)
            await made.mcp.gate.wait()
            await context.write(made.mcp.end(outcome=common_pb2.Json(text='"finished"')))

        made.mcp.behaviour = slow
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.mcp.began.wait()
        abort(signal, kind)
        made.mcp.gate.set()
        assert (await pending).value == "finished"
        assert made.mcp.aborts == []


# Remote servers.


async def test_a_remote_tool_is_unary_and_recovers():
    async with world() as made:
        effect, run = tool_effect("far__get"), run_of()
        assert made.executors.tools.recovers(effect, run)
        assert not made.executors.tools.recovers(tool_effect(), run)
        assert not made.executors.tools.recovers(tool_effect("bash", "box"), run)
        assert not made.executors.tools.recovers(model_effect(), run)
        outcome = await execute(made, effect, run, rejoin=True)
        assert outcome.value == {"kind": "completed", "output": "far"}
        assert made.mcp.calls[0].rejoin


async def test_a_remote_call_that_is_lost_is_sent_again_under_its_id():
    async with world() as made:

        async def lose_once(request, context):
            await context.send_initial_metadata(ACCEPTED)
            if len(made.mcp.calls) == 1:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "lost")
            return mcp_pool_pb2.ToolCallResult(outcome=common_pb2.Json(text='"again"'))

        made.mcp.remote = lose_once
        assert (await execute(made, tool_effect("far__get"))).value == "again"
        assert [call.effect.effect_id for call in made.mcp.calls] == ["e", "e"]


@pytest.mark.parametrize("kind", list(AbortKind))
async def test_aborts_of_a_remote_call(kind):
    async with world() as made:

        async def slow(request, context):
            await context.send_initial_metadata(ACCEPTED)
            made.mcp.began.set()
            await made.mcp.gate.wait()
            return mcp_pool_pb2.ToolCallResult(outcome=common_pb2.Json(text='"finished"'))

        made.mcp.remote = slow
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, tool_effect("far__get"), signal=signal))
        await made.mcp.began.wait()
        abort(signal, kind)
        if kind in (AbortKind.CANCEL, AbortKind.SHUTDOWN):
            with pytest.raises(RunAborted):
                await pending
        else:
            made.mcp.gate.set()
            assert (await pending).value == "finished"
        # The gate is asked by the run itself, and only when it was cancelled.
        assert made.mcp.cancels == []


async def test_the_gate_s_cancel_goes_to_the_run_s_replica_and_never_fails():
    async with world(cancel=0.2) as made:
        run = run_of()
        await made.executors.tools.cancel(tool_effect("far__get"), run)
        assert made.mcp.cancels == [("e", common_pb2.ABORT_KIND_CANCEL)]
        made.mcp.deaf = True
        await made.executors.tools.cancel(tool_effect("far__get"), run)
        await made.ports.kill(made.addresses["mcp-pool"])
        await made.executors.tools.cancel(tool_effect("far__get"), run)
        await made.executors.tools.cancel(tool_effect("far__get", effect_id="\ud800"), run)


async def test_a_cancel_that_no_pool_takes_is_kept_and_delivered_by_the_one_that_comes_back():
    async with world(cancel=0.2) as made:
        run = run_of()
        await made.executors.tools.cancel(tool_effect("far__get", effect_id="before"), run)
        await made.ports.kill(made.addresses["mcp-pool"])
        await made.executors.tools.cancel(tool_effect("far__get", effect_id="e1"), run)
        await made.executors.tools.cancel(tool_effect("far__get", effect_id="e2"), run)
        back = McpDouble()
        await made.restart(back)
        await until(lambda: len(back.cancels) == 2)
        assert sorted(back.cancels) == [
            ("e1", common_pb2.ABORT_KIND_CANCEL),
            ("e2", common_pb2.ABORT_KIND_CANCEL),
        ]
        assert back.cancel_tokens == [run.token(), run.token()]


@pytest.mark.parametrize("limit", ["time", "number"])
async def test_a_cancel_is_not_kept_for_ever_nor_are_any_number(limit, monkeypatch):
    said = []
    monkeypatch.setattr(KeptCancels, "_lost", lambda self, request, why: said.append(why))
    monkeypatch.setattr(kept_cancels, "MAX_KEPT", 1 if limit == "number" else 1000)
    async with world(cancel=0.2, keep_cancel=0.05 if limit == "time" else 600.0) as made:
        await made.ports.kill(made.addresses["mcp-pool"])
        for number in range(2):
            await made.executors.tools.cancel(tool_effect("far__get", effect_id=f"e{number}"), run_of())
        reasons = {"time": ["no mcp-pool answered"] * 2, "number": ["too many wait"]}
        await until(lambda: said == reasons[limit])


# Routing and preparing.


async def test_tools_that_are_neither_mcp_nor_sandbox_are_not_executed():
    async with world() as made:
        assert "other" in await fails(made, effect=tool_effect("other", "box"))
        assert "kind model" in await fails(made, effect=model_effect())
        assert made.mcp.calls == made.sandbox.calls == []


async def test_ids_with_half_a_surrogate_pair_are_refused():
    async with world() as made:
        for name, capability in (("srv__add", "tools"), ("far__get", "tools"), ("bash", "box")):
            text = await fails(made, effect=tool_effect(name, capability, effect_id="\ud800"))
            assert text.startswith("invalid")
        assert made.mcp.calls == made.sandbox.calls == []


async def test_discovery_gives_snapshot_and_diagnostics_as_they_are():
    async with world() as made:
        made.mcp.snapshot = {"z": 1, "a": [1, 2.5]}
        made.mcp.diagnostics = [{"outcome": "connected"}]
        found = await made.executors.mcp.discover(run_of(), "hash", AbortSignal())
        assert json.dumps(found.snapshot) == '{"z": 1, "a": [1, 2.5]}'
        assert list(found.diagnostics) == [{"outcome": "connected"}]
        [request] = made.mcp.calls
        assert json.loads(request.root_manifest.text) == MANIFEST
        assert (request.manifest_hash, dict(request.plugin_roots)) == ("hash", {"tools": "/plugins/tools"})


@pytest.mark.spec("mcp-pool:11.6")
async def test_reconnecting_sends_the_snapshot_and_the_declarations_it_names():
    async with world() as made:
        made.mcp.diagnostics = [{"outcome": "failed"}]
        found = await made.executors.mcp.reconnect(run_of(), SNAPSHOT, AbortSignal())
        assert list(found) == [{"outcome": "failed"}]
        [request] = made.mcp.calls
        assert json.loads(request.snapshot.text) == SNAPSHOT
        assert [server.server_name for server in request.servers] == ["srv", "far"]


@pytest.mark.parametrize("kind", list(AbortKind))
async def test_any_abort_ends_preparation(kind):
    async with world() as made:

        async def hang(request, context):
            await asyncio.Event().wait()

        made.mcp.remote = hang
        signal = AbortSignal()
        pending = asyncio.ensure_future(made.executors.mcp.discover(run_of(), "h", signal))
        await made.mcp.arrived.wait()
        abort(signal, kind)
        with pytest.raises(RunAborted):
            await pending


async def test_discovery_is_asked_again_after_a_loss_and_fails_when_the_pool_stays_away():
    async with world(resend_for=0.3) as made:

        async def lose_once(request, context):
            if len(made.mcp.calls) == 1:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "lost")

        made.mcp.remote = lose_once
        await made.executors.mcp.discover(run_of(), "h", AbortSignal())
        assert len(made.mcp.calls) == 2
        await made.ports.kill(made.addresses["mcp-pool"])
        with pytest.raises(ExecutionFailed):
            await made.executors.mcp.discover(run_of(), "h", AbortSignal())


async def test_a_renewed_token_goes_to_where_the_session_lives_and_never_fails():
    async with world(grant=0.3) as made:
        mcp = made.executors.mcp
        await mcp.put_grant("s", 4, "new", "2030-01-01T00:00:00.000Z")
        assert made.mcp.grants == []
        await execute(made)
        await mcp.put_grant("s", 4, "new", "2030-01-01T00:00:00.000Z")
        await mcp.put_grant("s", 5, "newer", None)
        assert made.mcp.grants == [
            ("t", "s", 4, "2030-01-01T00:00:00.000Z", "new"),
            ("t", "s", 5, "", "newer"),
        ]
        await made.ports.kill(made.addresses["mcp-pool"])
        await mcp.put_grant("s", 6, "newest", None)


@pytest.mark.spec("operations:13.38")
async def test_a_run_stays_on_its_replica_when_others_come_and_later_runs_spread():
    from gateway.executors.factory import connect
    from tests.executors.support import QUICK, Target, ports

    async with ports() as made:
        doubles = [McpDouble() for _ in range(3)]
        addresses = [await made.start(double, "127.0.0.1:0") for double in doubles]
        for address in addresses[1:]:
            await made.kill(address)
        targets = {
            "mcp-pool": [Target("p", "ipv4:" + ",".join(addresses))],
            "model-executor": [Target("m", "unix:/nowhere")],
            "sandbox-manager": [Target("s", "unix:/nowhere")],
        }
        async with (
            connect(targets, {"mcp-pool": TOKEN}, timings=QUICK) as connected,
            asyncio.timeout(BOUND_S),
        ):

            def serving():
                return sum(one["serving"] for one in connected.health.services()["mcp-pool"]["replicas"])

            await until(lambda: serving() == 1)
            # Ports decide who gets which session: with so many every replica has some.
            runs = [run_of(session_id=f"s{n}") for n in range(40)]
            tools = connected.executors.tools
            for run in runs:
                await tools.execute(tool_effect(), run, AbortSignal(), False)
            assert len(doubles[0].calls) == 40
            for double, address in zip(doubles[1:], addresses[1:], strict=True):
                await made.start(double, address)
            await until(lambda: serving() == 3)
            for run in runs:
                await tools.execute(tool_effect(), run, AbortSignal(), False)
            assert len(doubles[0].calls) == 80
            for run in runs:
                later = run_of(session_id=run.session_id)
                await tools.execute(tool_effect(), later, AbortSignal(), False)
            assert all(double.calls for double in doubles)
            homes = {
                call.effect.session_id: index for index, double in enumerate(doubles) for call in double.calls
            }
            for run in runs:
                later = run_of(session_id=run.session_id)
                await tools.execute(tool_effect(), later, AbortSignal(), False)
                assert doubles[homes[run.session_id]].calls[-1].effect.session_id == run.session_id


async def test_a_run_goes_on_at_a_replica_that_drains_and_moves_when_it_is_refused():
    from gateway.executors.factory import connect
    from tests.executors.support import QUICK, Target, ports

    async with ports() as made:
        doubles = [McpDouble() for _ in range(2)]
        addresses = [await made.start(double, "127.0.0.1:0") for double in doubles]
        targets = {
            "mcp-pool": [Target("p", "ipv4:" + ",".join(addresses))],
            "model-executor": [Target("m", "unix:/nowhere")],
            "sandbox-manager": [Target("s", "unix:/nowhere")],
        }
        async with (
            connect(targets, {"mcp-pool": TOKEN}, timings=QUICK) as connected,
            asyncio.timeout(BOUND_S),
        ):

            def serving():
                return sum(one["serving"] for one in connected.health.services()["mcp-pool"]["replicas"])

            await until(lambda: serving() == 2)
            run, tools = run_of(), connected.executors.tools
            await tools.execute(tool_effect(), run, AbortSignal(), False)
            home = next(index for index, double in enumerate(doubles) if double.calls)
            port = made.running[addresses[home]]
            await port._say_not_serving()
            await until(lambda: serving() == 1)
            await tools.execute(tool_effect(), run, AbortSignal(), False)
            assert len(doubles[home].calls) == 2
            doubles[home].draining = True
            await tools.execute(tool_effect(), run, AbortSignal(), False)
            assert len(doubles[home].calls) == 2
            assert len(doubles[1 - home].calls) == 1
