"""Model calls over gRPC: what is re-sent, what a failure becomes, aborts (design 3.3, model-executor 6)."""

import asyncio

import grpc
import pytest
from whippletree.v1 import common_pb2, model_executor_pb2

from gateway.engine.contract import AbortKind
from gateway.executors.contract import AbortSignal, ExecutionFailed, RunAborted
from services.common.errors import Refused, invalid, unavailable
from services.common.metadata import affinity_of
from tests.common.support import BOUND_S, TOKEN, until
from tests.executors.support import (
    ACCEPTED,
    ModelDouble,
    abort,
    aborted,
    model_effect,
    run_of,
    world,
)

ALL_KINDS = pytest.mark.parametrize("kind", list(AbortKind))


async def execute(made, effect=None, run=None, signal=None, rejoin=False):
    async with asyncio.timeout(BOUND_S):
        return await made.executors.model.execute(
            effect or model_effect(), run or run_of(), signal or AbortSignal(), rejoin
        )


def failure_of(parsed):
    assert parsed.value["kind"] == "failed"
    return parsed.value["code"], parsed.value["retryable"]


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_a_call_gets_the_executor_s_outcome_and_carries_what_it_needs(way):
    async with world(way=way) as made:
        call = '{"prompt":[{"b":1,"a":1.50}],"tools":[]}'
        outcome = await execute(made, model_effect(call=call))
        assert outcome.value == "hello"
        [request] = made.model.calls
        assert request.call.text == call
        assert request.invocation_id == "inv"
        assert not request.fixture
        effect = request.effect
        assert (effect.tenant_id, effect.session_id, effect.turn_id) == ("t", "s", "turn")
        assert (effect.run_id, effect.agent_id, effect.epoch, effect.effect_id) == ("run", "agent", 3, "e")
        [metadata] = made.model.metadata
        assert metadata["authorization"] == f"Bearer {TOKEN}"
        assert metadata["x-nylorun-affinity"] == affinity_of("s")
        assert metadata["x-nylorun-run-token"] == "token-1"
        assert metadata["traceparent"].startswith("00-")
        assert "token-1" not in str(request)


@pytest.mark.spec("model-executor:15.22")
async def test_each_call_carries_the_newest_run_token_and_none_without_one():
    tokens = iter(["one", "two", None])
    run = run_of(run_token=lambda: next(tokens))
    async with world() as made:
        for _ in range(3):
            await execute(made, run=run)
        assert [metadata.get("x-nylorun-run-token") for metadata in made.model.metadata] == [
            "one",
            "two",
            None,
        ]


async def test_a_fixture_run_says_so():
    async with world() as made:
        await execute(made, run=run_of(fixture_model=True))
        assert made.model.calls[0].fixture


@pytest.mark.parametrize("failure", [unavailable("draining"), unavailable("full")])
async def test_a_refusal_that_started_nothing_is_sent_again(failure):
    async with world() as made:

        async def refuse_twice(request, context):
            if len(made.model.calls) < 3:
                raise failure
            return await made.model.answer(request, context)

        made.model.behaviour = refuse_twice
        assert (await execute(made)).value == "hello"
        assert len(made.model.calls) == 3
        assert made.model.starts == ["e"]


async def test_an_executor_that_dies_mid_call_is_asked_again_under_the_same_id():
    async with world() as made:

        async def hang(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await asyncio.Event().wait()

        made.model.behaviour = hang
        pending = asyncio.ensure_future(execute(made))
        await made.model.arrived.wait()
        await made.ports.kill(made.addresses["model-executor"])
        successor = ModelDouble(route="scripted", recovers="true")
        await made.restart(successor)
        assert (await pending).value == "hello"
        assert [call.effect.effect_id for call in made.model.calls + successor.calls] == ["e", "e"]


@pytest.mark.spec("operations:13.37")
async def test_the_next_attempt_goes_to_another_replica():
    from gateway.executors.factory import connect
    from tests.executors.support import QUICK, Target, ports

    async with ports() as made:
        doubles = [ModelDouble(route="scripted", recovers="true") for _ in range(2)]
        addresses = [await made.start(double, "127.0.0.1:0") for double in doubles]
        target = Target("m", "ipv4:" + ",".join(addresses))
        others = {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "sandbox-manager")}
        tokens = {"model-executor": TOKEN}
        async with connect({"model-executor": [target], **others}, tokens, timings=QUICK) as connected:
            await until(lambda: _serving(connected, "model-executor") == 2)

            async def hang(request, context):
                await asyncio.Event().wait()

            for double in doubles:
                double.behaviour = hang
            pending = asyncio.ensure_future(
                connected.executors.model.execute(model_effect(), run_of(), AbortSignal(), False)
            )
            await until(lambda: sum(len(double.calls) for double in doubles) == 1)
            first = next(index for index, double in enumerate(doubles) if double.calls)
            other = doubles[1 - first]
            other.behaviour = None
            await made.kill(addresses[first])
            async with asyncio.timeout(BOUND_S):
                assert (await pending).value == "hello"
            assert other.starts == ["e"]


def _facts(made):
    return made.connected.health.services()["model-executor"]["replicas"][0]["facts"]


def _serving(connected, service):
    return sum(one["serving"] for one in connected.health.services()[service]["replicas"])


async def test_an_executor_that_stays_away_is_a_transient_failure_after_the_time_for_sending_again():
    async with world(resend_for=0.3) as made:
        await made.ports.kill(made.addresses["model-executor"])
        outcome = await execute(made)
        assert failure_of(outcome) == ("transient", True)


async def test_a_direct_call_is_not_sent_again_once_it_was_handed_over():
    async with world() as made:
        made.model.given_facts = {"route": "direct", "recovers": "true"}
        await until(
            lambda: (
                made.connected.health.services()["model-executor"]["replicas"][0]["facts"]["route"]
                == "direct"
            )
        )

        async def lose(request, context):
            if len(made.model.calls) == 1:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "lost")
            return await made.model.answer(request, context)

        made.model.behaviour = lose
        assert failure_of(await execute(made)) == ("transient", True)
        assert len(made.model.calls) == 1
        made.model.calls.clear()
        assert (await execute(made, rejoin=True)).value == "hello"
        assert len(made.model.calls) == 2


@pytest.mark.parametrize(
    ("failure", "code", "retryable", "calls"),
    [
        (ValueError("secret"), "transient", True, 3),
        (Refused(grpc.StatusCode.INTERNAL, "Model gateway returned 503 secret"), "overloaded", True, 3),
        (Refused(grpc.StatusCode.UNKNOWN, "invalid api key: secret"), "auth", False, 3),
        (Refused(grpc.StatusCode.INTERNAL, "RST_STREAM secret"), "transient", True, 3),
        (invalid("no such thing"), "invalid_request", False, 1),
        (Refused(grpc.StatusCode.FAILED_PRECONDITION, "odd"), "invalid_request", False, 1),
        (Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "big"), "invalid_request", False, 1),
        (Refused(grpc.StatusCode.PERMISSION_DENIED, "no"), "transient", False, 1),
        (Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), "transient", True, None),
        (Refused(grpc.StatusCode.UNAVAILABLE, "gone"), "transient", True, None),
    ],
)
async def test_every_status_becomes_an_outcome(failure, code, retryable, calls):
    async with world(resend_for=0.3) as made:

        async def fail(request, context):
            raise failure

        made.model.behaviour = fail
        outcome = await execute(made)
        assert failure_of(outcome) == (code, retryable)
        assert "secret" not in outcome.value["message"]
        assert calls is None or len(made.model.calls) == calls


async def test_an_answer_that_is_not_json_is_classified_by_its_text():
    async with world() as made:

        async def odd(request, context):
            return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text="nonsense"))

        made.model.behaviour = odd
        assert failure_of(await execute(made)) == ("invalid_request", False)


async def test_a_call_over_the_message_limit_is_an_invalid_request_that_names_it():
    async with world() as made:
        huge = model_effect(call='{"prompt":["' + "x" * (66 * 1024 * 1024) + '"],"tools":[]}')
        outcome = await execute(made, huge)
        assert failure_of(outcome) == ("invalid_request", False)
        assert "limit" in outcome.value["message"]
        assert (await execute(made)).value == "hello"


async def test_an_executor_that_never_says_accepted_counts_as_lost():
    async with world(silence=0.2, resend_for=0.5) as made:

        async def silent(request, context):
            if len(made.model.calls) == 1:
                await asyncio.Event().wait()
            return await made.model.answer(request, context)

        made.model.behaviour = silent
        assert (await execute(made)).value == "hello"
        assert len(made.model.calls) == 2


async def test_an_executor_that_goes_silent_after_accepted_is_given_up_after_its_limit():
    async with world(resend_for=0.2, give_up=0.1) as made:

        async def silent(request, context):
            await context.send_initial_metadata(
                (("x-whippletree-accepted", "1"), ("x-whippletree-limit-ms", "100"))
            )
            await asyncio.Event().wait()

        made.model.behaviour = silent
        assert failure_of(await execute(made)) == ("transient", True)


async def test_a_quiet_call_within_its_limit_goes_on_beyond_the_silence_before_accepted():
    async with world(silence=0.2) as made:

        async def slow(request, context):
            await context.send_initial_metadata(ACCEPTED)
            await asyncio.sleep(0.5)
            return await made.model.answer_later(request)

        async def answer_later(request):
            return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text='"late"'))

        made.model.answer_later = answer_later
        made.model.behaviour = slow
        assert (await execute(made)).value == "late"
        assert len(made.model.calls) == 1


@ALL_KINDS
async def test_an_abort_in_force_means_no_call_at_all(kind):
    async with world() as made:
        with pytest.raises(RunAborted) as caught:
            await execute(made, signal=aborted(kind))
        assert caught.value.abort.kind is kind
        assert made.model.calls == []


@ALL_KINDS
@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.spec("model-executor:15.31")
async def test_an_abort_mid_call_raises_and_only_a_cancel_is_told_to_the_executor(kind, accepted):
    async with world() as made:
        left = asyncio.Event()

        async def hang(request, context):
            if accepted:
                await context.send_initial_metadata(ACCEPTED)
            made.model.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        made.model.behaviour = hang
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.model.began.wait()
        abort(signal, kind)
        with pytest.raises(RunAborted) as caught:
            await pending
        assert caught.value.abort.kind is kind
        async with asyncio.timeout(BOUND_S):
            await left.wait()
        expected = [("e", common_pb2.ABORT_KIND_CANCEL)] if kind is AbortKind.CANCEL else []
        assert made.model.cancels == expected


async def test_a_cancel_that_cannot_be_delivered_does_not_hold_the_abort_up():
    async with world(cancel=0.2) as made:

        async def hang(request, context):
            made.model.began.set()
            await asyncio.Event().wait()

        made.model.behaviour = hang
        made.model.deaf = True
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.model.began.wait()
        abort(signal, AbortKind.CANCEL)
        with pytest.raises(RunAborted):
            await pending
        assert made.model.cancels


@ALL_KINDS
async def test_an_abort_while_waiting_for_a_service_ends_the_wait(kind):
    async with world(resend_for=30) as made:
        await made.ports.kill(made.addresses["model-executor"])
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await until(lambda: made.connected.health.missing() == ["model-executor"])
        await asyncio.sleep(0)
        abort(signal, kind)
        with pytest.raises(RunAborted):
            await pending


@ALL_KINDS
async def test_a_cancel_after_a_loss_is_told_to_every_replica(kind):
    async with world(resend_for=30) as made:

        async def lose(request, context):
            await context.send_initial_metadata(ACCEPTED)
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the connection broke, the call goes on")

        made.model.behaviour = lose
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await until(lambda: len(made.model.calls) > 2)
        abort(signal, kind)
        with pytest.raises(RunAborted):
            await pending
        expected = [("e", common_pb2.ABORT_KIND_CANCEL)] if kind is AbortKind.CANCEL else []
        assert made.model.cancels[:1] == expected


async def test_an_answer_that_came_before_the_abort_is_returned():
    async with world() as made:
        signal = AbortSignal()
        outcome = await execute(made, signal=signal)
        abort(signal, AbortKind.CANCEL)
        assert outcome.value == "hello"


async def test_a_call_that_somebody_else_cancelled_has_no_outcome():
    async with world() as made:

        async def cancelled(request, context):
            return model_executor_pb2.ModelCallReply(
                aborted=common_pb2.Aborted(kind=common_pb2.ABORT_KIND_CANCEL)
            )

        made.model.behaviour = cancelled
        with pytest.raises(ExecutionFailed):
            await execute(made)


async def test_a_cancelled_task_stays_cancelled_and_leaves_no_call_behind():
    async with world() as made:
        left = asyncio.Event()

        async def hang(request, context):
            made.model.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        made.model.behaviour = hang
        task = asyncio.ensure_future(execute(made))
        await made.model.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(BOUND_S):
            await left.wait()


async def test_ids_with_half_a_surrogate_pair_are_refused_before_any_call():
    async with world() as made:
        for effect, run in (
            (model_effect("\ud800"), run_of()),
            (model_effect(), run_of(session_id="\udfff")),
        ):
            outcome = await execute(made, effect, run)
            assert failure_of(outcome) == ("invalid_request", False)
        assert made.model.calls == []


async def test_whether_calls_recover_is_what_the_executors_say():
    async with world() as made:
        assert made.executors.model.recovers()
        made.model.given_facts = {"route": "direct", "recovers": "false"}
        await until(lambda: not made.executors.model.recovers())


async def test_calls_go_to_the_replica_with_the_fewest_in_flight():
    from gateway.executors.factory import connect
    from tests.executors.support import QUICK, Target, ports

    async with ports() as made:
        doubles = [ModelDouble(route="scripted") for _ in range(3)]
        addresses = [await made.start(double, "127.0.0.1:0") for double in doubles]
        targets = {
            "model-executor": [Target("m", "ipv4:" + ",".join(addresses))],
            "mcp-pool": [Target("p", "unix:/nowhere")],
            "sandbox-manager": [Target("s", "unix:/nowhere")],
        }
        async with connect(targets, {"model-executor": TOKEN}, timings=QUICK) as connected:
            await until(lambda: _serving(connected, "model-executor") == 3)

            for double in doubles:

                async def held(request, context, double=double):
                    await double.gate.wait()
                    return await double.answer(request, context)

                double.behaviour = held
            model = connected.executors.model
            pending = [
                asyncio.ensure_future(model.execute(model_effect(f"e{n}"), run_of(), AbortSignal(), False))
                for n in range(6)
            ]
            await until(lambda: [len(double.calls) for double in doubles] == [2, 2, 2])
            for double in doubles:
                double.gate.set()
            async with asyncio.timeout(BOUND_S):
                await asyncio.gather(*pending)


# A route whose limit is known to be short has one bound for the whole call.

SHORT = {"route": "scripted", "recovers": "true", "limit_ms": "100"}


@pytest.mark.parametrize("limit_ms", ["100", "59000", "61000", "nonsense", "", "-1", "9" * 30])
async def test_a_call_is_answered_whatever_limit_the_executor_names(limit_ms):
    async with world(model_facts=SHORT | {"limit_ms": limit_ms}) as made:
        assert (await execute(made)).value == "hello"


@ALL_KINDS
async def test_an_abort_ends_a_call_of_a_short_route_too(kind):
    async with world(model_facts=SHORT) as made:
        left = asyncio.Event()

        async def hang(request, context):
            made.model.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        made.model.behaviour = hang
        signal = AbortSignal()
        pending = asyncio.ensure_future(execute(made, signal=signal))
        await made.model.began.wait()
        abort(signal, kind)
        with pytest.raises(RunAborted):
            await pending
        async with asyncio.timeout(BOUND_S):
            await left.wait()
        assert len(made.model.cancels) == (kind is AbortKind.CANCEL)


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_short_route_that_falls_silent_counts_as_lost_and_is_asked_again(accepted):
    async with world(model_facts=SHORT, silence=0.2, give_up=0.1) as made:

        async def silent_once(request, context):
            if len(made.model.calls) > 1:
                return await made.model.answer(request, context)
            if accepted:
                await context.send_initial_metadata(ACCEPTED)
            await asyncio.Event().wait()

        made.model.behaviour = silent_once
        assert (await execute(made)).value == "hello"
        assert len(made.model.calls) == 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (unavailable("full"), "transient"),
        (ValueError("secret"), "transient"),
        (invalid("odd"), "invalid_request"),
    ],
)
async def test_failures_of_a_short_route_are_outcomes_too(failure, code):
    async with world(model_facts=SHORT, resend_for=0.2) as made:

        async def fail(request, context):
            raise failure

        made.model.behaviour = fail
        outcome = await execute(made)
        assert failure_of(outcome)[0] == code
        assert "secret" not in outcome.value["message"]


async def test_a_cancelled_task_leaves_no_call_of_a_short_route_behind():
    async with world(model_facts=SHORT) as made:
        left = asyncio.Event()

        async def hang(request, context):
            made.model.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        made.model.behaviour = hang
        task = asyncio.ensure_future(execute(made))
        await made.model.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(BOUND_S):
            await left.wait()
