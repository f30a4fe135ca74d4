"""Sandbox tools and core's workspace requests over gRPC: shards, events in order, aborts (sandbox-manager 7 to 11)."""

import asyncio
import base64
from dataclasses import replace

import grpc
import pytest
from whippletree.v1 import common_pb2, sandbox_manager_pb2

from gateway.engine.contract import AbortKind
from gateway.executors.contract import (
    AbortSignal,
    ExecutionFailed,
    RunAborted,
    SandboxEvent,
    SandboxRouting,
    WorkspaceFailed,
)
from gateway.executors.factory import connect
from gateway.executors.run_sandbox import workspace_key
from gateway.executors.workspaces import MAX_FILE_BYTES
from services.common.errors import Refused, unavailable
from services.common.metadata import affinity_of
from tests.common.support import BOUND_S, TOKEN, until
from tests.executors.support import (
    ACCEPTED,
    QUICK,
    Claims,
    SandboxDouble,
    Target,
    abort,
    aborted,
    bash_effect,
    caller_of,
    ports,
    run_of,
    world,
)

ALL_KINDS = pytest.mark.parametrize("kind", list(AbortKind))
DONE = {"kind": "completed", "output": "done"}
SESSION_S = workspace_key("t", "s", None)


async def execute(made, effect=None, run=None, signal=None):
    async with asyncio.timeout(BOUND_S):
        return await made.executors.tools.execute(
            effect or bash_effect(), run or run_of(), signal or AbortSignal(), False
        )


def reply(**part):
    return sandbox_manager_pb2.RunReply(**part)


def outcome(text):
    return reply(outcome=common_pb2.Json(text=text))


def test_workspace_keys_are_those_of_the_specification():
    assert workspace_key("tn_a", "s1", None) == "nylorun-tn_a-e8bc163c82eee187"
    assert workspace_key("tn_a", "x", "team-a/proj-42") == "nylorun-tn_a-sbx-98138bc3c1848a88"


async def test_a_sandbox_tool_goes_to_the_workspace_of_its_session():
    async with world() as made:
        assert (await execute(made)).value == DONE
        [operation] = made.sandbox.calls
        assert (operation.tenant.tenant_id, operation.tenant.preference) == ("t", "auto")
        assert (operation.workspace.owner_id, operation.workspace.active_turn_id) == ("s", "turn")
        assert not operation.workspace.HasField("sandbox_id")
        assert operation.spec.text == '{"image":"i"}'
        assert (operation.tool.tool, operation.tool.input.text) == ("bash", '{"command":"ls"}')
        assert operation.effect.effect_id == "e"
        assert made.sandbox.starts == ["e"]
        assert made.sandbox.metadata[0]["x-nylorun-affinity"] == affinity_of(SESSION_S)


async def test_no_run_token_goes_to_where_commands_run():
    async with world() as made:
        await execute(made, run=run_of(run_token="token-1"))
        assert "x-nylorun-run-token" not in made.sandbox.metadata[0]


async def test_a_shared_sandbox_is_named_with_its_owner():
    async with world() as made:
        await execute(made, run=run_of(sandbox=SandboxRouting("owner", "team/proj")))
        workspace = made.sandbox.calls[0].workspace
        assert (workspace.owner_id, workspace.sandbox_id) == ("owner", "team/proj")
        key = workspace_key("t", "owner", "team/proj")
        assert made.sandbox.metadata[0]["x-nylorun-affinity"] == affinity_of(key)


async def test_each_event_is_acknowledged_only_after_core_answered_its_claim():
    async with world() as made:

        async def tell(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            record = sandbox_manager_pb2.WorkspaceRecord(
                key=SESSION_S,
                session_id="s",
                backend="virtual",
                image="i",
                state="running",
                created_at="c",
                updated_at="u",
            )
            await made.sandbox.event(context, 1, type="sandbox.state", record=record)
            await made.sandbox.event(context, 2)
            await context.write(outcome('"told"'))

        made.sandbox.behaviour = tell
        claims = Claims(gate=asyncio.Event())
        pending = asyncio.ensure_future(execute(made, run=run_of(claim_event=claims)))
        async with asyncio.timeout(BOUND_S):
            await claims.arrived.wait()
        assert made.sandbox.acks == []
        assert len(claims.events) == 1
        claims.gate.set()
        assert (await pending).value == "told"
        assert made.sandbox.acks == [1, 2]
        assert claims.events == [
            SandboxEvent(
                "s",
                "turn",
                "sandbox.state",
                {"tool": "bash"},
                {
                    "key": SESSION_S,
                    "sessionId": "s",
                    "backend": "virtual",
                    "image": "i",
                    "state": "running",
                    "createdAt": "c",
                    "updatedAt": "u",
                },
            ),
            SandboxEvent("s", "turn", "sandbox.exec", {"tool": "bash"}, None),
        ]


async def test_an_event_that_cannot_be_read_is_dropped_and_acknowledged():
    async with world() as made:

        async def tell(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await made.sandbox.event(context, 1, payload=common_pb2.Json(text="nonsense"))
            await context.write(outcome('"told"'))

        made.sandbox.behaviour = tell
        claims = Claims()
        assert (await execute(made, run=run_of(claim_event=claims))).value == "told"
        assert (claims.events, made.sandbox.acks) == ([], [1])


@ALL_KINDS
@pytest.mark.spec("operations:13.34")
async def test_every_abort_crosses_by_its_kind_and_the_killed_command_s_outcome_counts(kind):
    async with world() as made:

        async def killed(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await made.sandbox.next_abort(context)
            await made.sandbox.event(context, 1)
            await context.write(outcome('{"kind":"completed","output":{"exitCode":130}}'))

        made.sandbox.behaviour = killed
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.sandbox.began.wait()
        abort(signal, kind)
        assert (await pending).value["output"] == {"exitCode": 130}
        assert common_pb2.AbortKind.Name(made.sandbox.aborts[0]).endswith(kind.name)
        assert made.sandbox.acks == [1]


@ALL_KINDS
async def test_an_abort_in_force_or_before_start_begins_nothing(kind):
    async with world() as made:
        with pytest.raises(RunAborted):
            await execute(made, signal=aborted(kind))
        assert made.sandbox.calls == []

        async def hang(request, context):
            await asyncio.Event().wait()

        made.sandbox.behaviour = hang
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.sandbox.arrived.wait()
        abort(signal, kind)
        with pytest.raises(RunAborted) as caught:
            await pending
        assert caught.value.abort.kind is kind
        assert made.sandbox.starts == []


async def test_an_abort_while_core_is_asked_about_an_event_still_reaches_the_command():
    async with world() as made:

        async def tell(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            event = sandbox_manager_pb2.SandboxEvent(
                seq=1, session_id="s", type="sandbox.exec", payload=common_pb2.Json(text="{}")
            )
            await context.write(reply(event=event))
            await made.sandbox.next_abort(context)
            made.sandbox.gate.set()
            made.sandbox.acks.append((await context.read()).ack.seq)
            await context.write(outcome('"killed"'))

        made.sandbox.behaviour = tell
        claims, signal = Claims(gate=asyncio.Event()), AbortSignal()
        pending = asyncio.ensure_future(execute(made, run=run_of(claim_event=claims), signal=signal))
        async with asyncio.timeout(BOUND_S):
            await claims.arrived.wait()
            abort(signal, AbortKind.CANCEL)
            await made.sandbox.gate.wait()
        claims.gate.set()
        assert (await pending).value == "killed"
        assert made.sandbox.acks == [1]


@pytest.mark.spec("operations:13.35")
async def test_a_manager_that_dies_after_start_or_between_events_is_never_asked_again():
    async with world() as made:

        async def tell(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await made.sandbox.event(context, 1)
            await asyncio.Event().wait()

        made.sandbox.behaviour = tell
        claims = Claims(gate=asyncio.Event())
        pending = asyncio.ensure_future(execute(made, run=run_of(claim_event=claims)))
        await claims.arrived.wait()
        await made.ports.kill(made.addresses["sandbox-manager"])
        successor = SandboxDouble()
        await made.restart(successor)
        claims.gate.set()
        with pytest.raises(ExecutionFailed, match="may have run"):
            await pending
        assert successor.calls == []


@pytest.mark.spec("operations:13.36")
async def test_a_manager_that_comes_back_before_start_runs_the_command_once():
    async with world() as made:

        async def hang(request, context):
            await asyncio.Event().wait()

        made.sandbox.behaviour = hang
        pending = asyncio.ensure_future(execute(made))
        await made.sandbox.arrived.wait()
        await made.ports.kill(made.addresses["sandbox-manager"])
        successor = SandboxDouble()
        await made.restart(successor)
        assert (await pending).value == DONE
        assert made.sandbox.starts + successor.starts == ["e"]


async def test_another_kind_of_end_is_no_answer_to_a_tool():
    async with world() as made:

        async def odd(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await context.write(reply(missing=sandbox_manager_pb2.MissingPath(path="x")))

        made.sandbox.behaviour = odd
        with pytest.raises(ExecutionFailed):
            await execute(made)


# Shards.


async def sharded(made, names):
    doubles, targets = {}, []
    for name in names:
        doubles[name] = SandboxDouble()
        targets.append(Target(name, await made.start(doubles[name])))
    others = {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "model-executor")}
    return doubles, {"sandbox-manager": targets, **others}


async def test_a_workspace_lives_in_one_shard_by_name_and_never_moves():
    async with ports() as made:
        doubles, targets = await sharded(made, ["a", "b", "c"])
        addresses = {target.name: target.target for target in targets["sandbox-manager"]}
        quick = replace(QUICK, resend_for=0.3)
        async with connect(targets, {"sandbox-manager": TOKEN}, timings=quick) as connected:
            await until(lambda: "sandbox-manager" not in connected.health.missing())
            tools = connected.executors.tools
            for number in range(12):
                await tools.execute(bash_effect(), run_of(session_id=f"s{number}"), AbortSignal(), False)
            homes = {
                call.workspace.owner_id: name for name, double in doubles.items() for call in double.calls
            }
            assert set(homes.values()) == {"a", "b", "c"}
            await made.kill(addresses[homes["s0"]])
            await until(lambda: "sandbox-manager" in connected.health.missing())
            before = sum(len(double.calls) for double in doubles.values())
            with pytest.raises(ExecutionFailed, match="not there"):
                await tools.execute(bash_effect(), run_of(session_id="s0"), AbortSignal(), False)
            assert sum(len(double.calls) for double in doubles.values()) == before
            other = next(session for session, name in homes.items() if name != homes["s0"])
            await tools.execute(bash_effect(), run_of(session_id=other), AbortSignal(), False)


async def test_reports_sweeps_and_removals_of_everything_ask_every_shard():
    async with ports() as made:
        doubles, targets = await sharded(made, ["a", "b"])
        addresses = {target.name: target.target for target in targets["sandbox-manager"]}
        quick = replace(QUICK, resend_for=0.3)
        async with connect(targets, {"sandbox-manager": TOKEN}, timings=quick) as connected:
            await until(lambda: "sandbox-manager" not in connected.health.missing())
            workspaces = connected.executors.workspaces
            assert await workspaces.report("t", "auto") == {"backend": "virtual"}
            doubles["b"].report = {"backend": None, "reason": "no"}
            assert await workspaces.report("t", "auto") == {"backend": None, "reason": "no"}
            for name, double in doubles.items():
                double.records = [sandbox_manager_pb2.WorkspaceRecord(key=f"k-{name}", session_id="s")]
                double.sweep_events = 2
            claims = Claims()
            records = await workspaces.sweep("t", "auto", 12.5, claims)
            assert [record["key"] for record in records] == ["k-a", "k-b"]
            assert len(claims.events) == 4
            assert [double.acks for double in doubles.values()] == [[1, 2], [1, 2]]
            assert [double.calls[-1].now_ms for double in doubles.values()] == [12.5, 12.5]
            keys = [workspace_key("t", f"s{number}", None) for number in range(8)]
            await workspaces.remove("t", "auto", True, keys, ["x", "y"])
            for double in doubles.values():
                assert double.removed[0] == (True, [], [])
            removed = [key for double in doubles.values() for _, some, _ in double.removed for key in some]
            assert sorted(removed) == sorted(keys)
            boxes = [box for double in doubles.values() for *_, some in double.removed for box in some]
            assert sorted(boxes) == ["x", "y"]
            await made.kill(addresses["b"])
            await until(lambda: "sandbox-manager" in connected.health.missing())
            for ask in (workspaces.report("t", "auto"), workspaces.sweep("t", "auto", None, claims)):
                with pytest.raises(WorkspaceFailed) as caught:
                    await ask
                assert caught.value.code == "unavailable"


# Core's requests.


async def test_a_tool_of_core_s_has_no_effect_and_its_events_are_claimed_for_the_caller():
    async with world() as made:

        async def tell(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await made.sandbox.event(context, 1)
            await context.write(outcome('"told"'))

        made.sandbox.behaviour = tell
        caller = caller_of(active_turn_id=None)
        answer = await made.executors.workspaces.run(
            caller, {"image": "i"}, "bash", {"command": "ls"}, AbortSignal()
        )
        assert answer.value == "told"
        [operation] = made.sandbox.calls
        assert not operation.HasField("effect")
        assert not operation.workspace.HasField("active_turn_id")
        assert len(caller.claim_event.events) == 1


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_a_file_comes_in_chunks_and_goes_out_in_base64(size):
    content = bytes(number % 251 for number in range(size))
    async with world() as made:

        async def read(request, context):
            assert request.read_bytes.path == "p"
            assert request.read_bytes.max_bytes == 5_000_000
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await context.write(reply(file=sandbox_manager_pb2.FileHeader(path="/workspace/p", size=size)))
            for at in range(0, size, 1 << 20):
                await context.write(reply(chunk=content[at : at + (1 << 20)]))

        made.sandbox.behaviour = read
        answer = await made.executors.workspaces.read_bytes(caller_of(), {}, "p", 5_000_000, AbortSignal())
        assert answer == {
            "kind": "read",
            "path": "/workspace/p",
            "base64": base64.b64encode(content).decode(),
        }


async def test_a_file_that_would_not_fit_a_frame_is_too_large_and_not_fetched():
    async with world() as made:

        async def read(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await context.write(
                reply(file=sandbox_manager_pb2.FileHeader(path="/workspace/p", size=MAX_FILE_BYTES + 1))
            )
            await asyncio.Event().wait()

        made.sandbox.behaviour = read
        answer = await made.executors.workspaces.read_bytes(caller_of(), {}, "p", 10**9, AbortSignal())
        assert (answer["kind"], answer["code"]) == ("failed", "artifact.too_large")
        assert "/workspace/p" in answer["message"]


async def test_a_stream_with_more_bytes_than_the_file_has_is_a_fault():
    async with world() as made:

        async def read(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await context.write(reply(file=sandbox_manager_pb2.FileHeader(path="p", size=1)))
            await context.write(reply(chunk=b"xx"))

        made.sandbox.behaviour = read
        with pytest.raises(WorkspaceFailed) as caught:
            await made.executors.workspaces.read_bytes(caller_of(), {}, "p", 10, AbortSignal())
        assert caught.value.code == "internal"
        assert len(made.sandbox.calls) == 1


async def test_listings_missing_paths_and_failed_outcomes_are_answers():
    ends = iter(
        [
            reply(
                listing=sandbox_manager_pb2.FileListing(
                    path="/workspace",
                    entries=[sandbox_manager_pb2.FileEntry(path="a", size=1)],
                    truncated=True,
                )
            ),
            reply(missing=sandbox_manager_pb2.MissingPath(path="d")),
            outcome('{"kind":"failed","code":"sandbox.unavailable","message":"no"}'),
        ]
    )
    async with world() as made:

        async def answer(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await context.write(next(ends))

        made.sandbox.behaviour = answer
        workspaces = made.executors.workspaces
        asked = [await workspaces.list_files(caller_of(), {}, "d", 10, AbortSignal()) for _ in range(3)]
        assert asked == [
            {
                "kind": "listed",
                "path": "/workspace",
                "listing": {"entries": [{"path": "a", "size": 1}], "truncated": True},
            },
            {"kind": "missing", "path": "d"},
            {"kind": "failed", "code": "sandbox.unavailable", "message": "no"},
        ]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Refused(grpc.StatusCode.INVALID_ARGUMENT, "odd"), "invalid"),
        (unavailable("draining"), "unavailable"),
        (ValueError("secret"), "internal"),
    ],
)
async def test_failures_of_core_s_requests_have_a_code_of_the_harness_api(failure, code):
    async with world(resend_for=0.2) as made:

        async def fail(request, context):
            raise failure

        made.sandbox.behaviour = fail
        with pytest.raises(WorkspaceFailed) as caught:
            await made.executors.workspaces.run(caller_of(), {}, "bash", {}, AbortSignal())
        assert caught.value.code == code
        assert "secret" not in str(caught.value)


async def test_what_the_manager_raised_is_internal():
    async with world() as made:

        async def fail(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await made.sandbox.started(context, request)
            await context.write(reply(raised=common_pb2.Raised(message="The backend failed.")))

        made.sandbox.behaviour = fail
        with pytest.raises(WorkspaceFailed, match="The backend failed") as caught:
            await made.executors.workspaces.run(caller_of(), {}, "bash", {}, AbortSignal())
        assert caught.value.code == "internal"


async def test_a_key_of_another_tenant_is_invalid_and_earlier_ones_are_gone():
    async with world() as made:
        with pytest.raises(WorkspaceFailed, match="other") as caught:
            await made.executors.workspaces.remove("t", "auto", False, ["nylorun-t-0", "other"], ["x"])
        assert caught.value.code == "invalid"
        assert made.sandbox.removed == [(False, ["nylorun-t-0", "other"], [])]


async def test_texts_with_half_a_surrogate_pair_are_invalid():
    async with world() as made:
        workspaces, signal = made.executors.workspaces, AbortSignal()
        for ask in (
            workspaces.run(caller_of(owner_id="\ud800"), {}, "bash", {}, signal),
            workspaces.read_bytes(caller_of(), {}, "\ud800", 1, signal),
            workspaces.list_files(caller_of(), {}, "\ud800", 1, signal),
            workspaces.remove("t", "auto", False, ["\ud800"], []),
            workspaces.remove("t", "auto", False, [], ["\ud800"]),
            workspaces.report("\ud800", "auto"),
        ):
            with pytest.raises(WorkspaceFailed) as caught:
                await ask
            assert caught.value.code == "invalid"
        assert made.sandbox.calls == made.sandbox.removed == []


async def test_input_and_spec_cross_as_javascript_writes_them():
    async with world() as made:
        await made.executors.workspaces.run(
            caller_of(), {"b": 1e21, "a": "\ud800"}, "bash", {"x": 2e-05}, AbortSignal()
        )
        [operation] = made.sandbox.calls
        assert operation.spec.text == '{"b":1e+21,"a":"\\ud800"}'
        assert operation.tool.input.text == '{"x":0.00002}'
