"""The port of a service: bearer, catch-all, limits, health, reflection, Admin, and how it drains."""

import asyncio
import io
import json
import socket
import stat

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    mcp_pool_pb2,
    mcp_pool_pb2_grpc,
    model_executor_pb2,
    model_executor_pb2_grpc,
)

from services.common.channel import bearer, open_channel
from services.common.errors import FAULT_TEXT, Refused, not_started
from services.common.logs import configure_logging
from services.common.metadata import NOT_STARTED, find
from services.common.process import StartFailed
from services.common.server import ServerSettings, calls_share_s, serve, server_options
from tests.common.support import BOUND_S, TOKEN, Recorder, served, socket_folder

NAME = "whippletree.v1.ModelExecutor"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Echo(Recorder):
    """Answers with what it got; `gate`, when set, holds the answer back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.failure: BaseException | None = None

    async def Describe(self, request, context):
        return model_executor_pb2.ModelDescribeReply(route="echo")

    async def Call(self, request, context):
        self.entered.set()
        if self.failure is not None:
            raise self.failure
        if self.gate is not None:
            await self.gate.wait()
        return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text=request.call.text))

    async def Cancel(self, request, context):
        await not_started(context, "not now")


def stub(port):
    return model_executor_pb2_grpc.ModelExecutorStub(port.channel)


def call_of(text: str):
    return model_executor_pb2.ModelCallRequest(call=common_pb2.Json(text=text))


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer " + "00" * 32),),
        (("authorization", TOKEN),),
        (("authorization", "Basic " + TOKEN),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer " + TOKEN[:-1]),),
    ],
)
@pytest.mark.spec("operations:13.29")
async def test_calls_without_the_bearer_are_unauthenticated_over_tcp(metadata):
    async with served(Echo(), listen="127.0.0.1:0") as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(port).Describe(model_executor_pb2.ModelDescribeRequest(), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_each_token_of_the_list_opens_the_port(scheme):
    other = "cd" * 32
    async with served(Echo(), token=f"{other},{TOKEN}") as port:
        for token in (other, TOKEN):
            reply = await stub(port).Describe(
                model_executor_pb2.ModelDescribeRequest(), metadata=(("authorization", f"{scheme} {token}"),)
            )
            assert reply.route == "echo"


async def test_health_asks_for_no_bearer_and_knows_process_and_service():
    async with served(Echo()) as port:
        health = health_pb2_grpc.HealthStub(port.channel)
        for name in ("", NAME):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def reflected(port, metadata):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    call = reflection_pb2_grpc.ServerReflectionStub(port.channel).ServerReflectionInfo(metadata=metadata)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services="*"))
    reply = await call.read()
    call.cancel()
    return {service.name for service in reply.list_services_response.service}


async def test_reflection_stands_behind_the_bearer():
    async with served(Echo()) as port:
        assert {NAME, "whippletree.v1.Admin"} <= await reflected(port, bearer(TOKEN))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected(port, ())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.spec("operations:13.30")
async def test_an_exception_of_a_handler_reaches_the_caller_as_a_fixed_text():
    log = io.StringIO()
    configure_logging("model-executor", stream=log)
    service = Echo()
    service.failure = ValueError("secret")
    async with served(service) as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(port).Call(call_of("x"), metadata=port.metadata)
    error = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, FAULT_TEXT)
    assert "secret" not in str(error) + str(error.trailing_metadata()) + str(error.initial_metadata())
    configure_logging("model-executor")
    logged = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["error"] for line in logged if line["message"] == "rpc_failed"] == ["ValueError: secret"]


class Leaky(mcp_pool_pb2_grpc.McpPoolServicer):
    """Fails in every kind of handler, before and after the first message."""

    full_name = "whippletree.v1.McpPool"
    service = "mcp-pool"

    def __init__(self, after: bool) -> None:
        self.after = after

    def register(self, server):
        mcp_pool_pb2_grpc.add_McpPoolServicer_to_server(self, server)

    def in_flight(self):
        return []

    async def stop_taking(self):
        return None

    async def close(self):
        return None

    async def Call(self, request_iterator, context):
        async for _ in request_iterator:
            if self.after:
                await context.write(mcp_pool_pb2.ToolCallReply(queued=common_pb2.Queued(position=1)))
            raise RuntimeError("secret")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.spec("operations:13.30")
async def test_an_exception_of_a_stream_handler_reaches_the_caller_as_a_fixed_text(after):
    async with served(Leaky(after)) as port:
        call = mcp_pool_pb2_grpc.McpPoolStub(port.channel).Call(metadata=port.metadata)
        await call.write(mcp_pool_pb2.ToolCallRequest(start=common_pb2.Start()))
        if after:
            assert (await call.read()).queued.position == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value)


async def test_an_rpc_that_is_not_implemented_says_so():
    async with served(Recorder()) as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(port).Describe(model_executor_pb2.ModelDescribeRequest(), metadata=port.metadata)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_bytes_that_are_no_message_give_an_error_without_their_content():
    async with served(Echo()) as port:
        raw = port.channel.unary_unary(f"/{NAME}/Call", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(b"\xff\xffsecret", metadata=port.metadata)
        assert "secret" not in str(caught.value)
        assert (await stub(port).Call(call_of("fine"), metadata=port.metadata)).outcome.text == "fine"


async def test_a_refusal_carries_its_status_its_text_and_that_nothing_started():
    service = Echo()
    async with served(service) as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(port).Cancel(common_pb2.CancelRequest(), metadata=port.metadata)
        error = caught.value
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "not now")
        assert find(error.trailing_metadata(), NOT_STARTED) == "1"
        service.failure = Refused(grpc.StatusCode.FAILED_PRECONDITION, "another tenant")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(port).Call(call_of("x"), metadata=port.metadata)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert find(caught.value.trailing_metadata(), NOT_STARTED) is None


@pytest.mark.spec("operations:13.32")
async def test_twenty_megabytes_pass_and_what_is_over_the_limit_gets_a_clear_error_and_harms_nobody():
    async with served(Echo()) as port:
        big = "x" * (20 * 1024 * 1024)
        assert len((await stub(port).Call(call_of(big), metadata=port.metadata)).outcome.text) == len(big)
        async with grpc.aio.insecure_channel(
            port.address, options=[("grpc.max_send_message_length", -1)]
        ) as unbounded:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await model_executor_pb2_grpc.ModelExecutorStub(unbounded).Call(
                    call_of("x" * (70 * 1024 * 1024)), metadata=port.metadata
                )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub(port).Call(call_of("fine"), metadata=port.metadata)).outcome.text == "fine"


async def test_describe_says_what_the_process_is():
    async with served(Echo()) as port:
        admin = admin_pb2_grpc.AdminStub(port.channel)
        first = await admin.Describe(admin_pb2.DescribeRequest(), metadata=port.metadata)
        assert (first.service, first.api_major) == ("model-executor", 1)
        assert dict(first.facts) == {"route": "scripted"}
        assert first.instance
        again = await admin.Describe(admin_pb2.DescribeRequest(), metadata=port.metadata)
        assert again == first


async def test_stats_count_work_and_never_show_content():
    service = Echo()
    async with served(service) as port:
        running = service.work.begin("model", "s", "e", "queued")
        service.work.begin("model", "s", "done").end("completed")
        reply = await admin_pb2_grpc.AdminStub(port.channel).Stats(
            admin_pb2.StatsRequest(), metadata=port.metadata
        )
        [flying] = reply.in_flight
        assert (flying.kind, flying.session_id, flying.effect_id, flying.phase) == (
            "model",
            "s",
            "e",
            "queued",
        )
        assert dict(reply.counts) == {"model.completed": 1}
        [histogram] = reply.latencies
        assert len(histogram.counts) == len(histogram.bounds_ms) + 1
        assert sum(histogram.counts) == 1
        assert not reply.draining
        running.end()


async def test_stats_show_their_counts_while_nothing_runs():
    service = Echo()
    async with served(service) as port:
        service.work.begin("model", "s", "done").end("completed")
        reply = await admin_pb2_grpc.AdminStub(port.channel).Stats(
            admin_pb2.StatsRequest(), metadata=port.metadata
        )
        assert dict(reply.counts) == {"model.completed": 1}
        assert len(reply.latencies) == 1


async def test_admin_asks_for_the_bearer():
    async with served(Echo()) as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.AdminStub(port.channel).Stats(admin_pb2.StatsRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_drain_says_what_runs_until_nothing_does_and_the_port_is_no_longer_ready():
    service = Echo()
    async with served(service) as port:
        work = service.work.begin("model", "s", "e")
        call = admin_pb2_grpc.AdminStub(port.channel).Drain(admin_pb2.DrainRequest(), metadata=port.metadata)
        assert [one.effect_id for one in (await call.read()).in_flight] == ["e"]
        work.end()
        replies = []
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)
        assert not replies[-1].in_flight
        assert service.seen == ["stop taking"]
        health = health_pb2_grpc.HealthStub(port.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(service=NAME))).status == NOT_SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest(service=""))).status == SERVING


async def test_stopping_lets_a_call_finish_and_ends_health_watches():
    service = Echo()
    service.gate = asyncio.Event()
    async with served(service, stop_grace_ms=10_000) as port:
        watch = health_pb2_grpc.HealthStub(port.channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
        assert (await watch.read()).status == SERVING
        call = stub(port).Call(call_of("late"), metadata=port.metadata)
        pending = asyncio.ensure_future(call)
        await service.entered.wait()
        port.stop.set()
        assert (await watch.read()).status == NOT_SERVING
        assert not pending.done()
        service.gate.set()
        assert (await pending).outcome.text == "late"
        async with asyncio.timeout(BOUND_S):
            await port.task
        assert service.seen == ["stop taking", "close"]


async def test_after_the_grace_a_call_is_cut_its_cleanup_is_awaited_and_the_service_closed():
    class Slow(Echo):
        async def Call(self, request, context):
            self.entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                self.seen.append("cleaned up")

    service = Slow()
    async with served(service, stop_grace_ms=1500) as port:
        pending = asyncio.ensure_future(stub(port).Call(call_of("x"), metadata=port.metadata))
        await service.entered.wait()
        await port.end()
        with pytest.raises(grpc.aio.AioRpcError):
            await pending
    assert service.seen == ["stop taking", "cleaned up", "close"]


@pytest.mark.spec("operations:13.18")
async def test_a_handler_that_ignores_cancellation_does_not_hold_the_stop_up():
    class Stubborn(Echo):
        async def Call(self, request, context):
            self.entered.set()
            while not self.released.is_set():
                try:
                    await self.released.wait()
                except asyncio.CancelledError:
                    continue

    service = Stubborn()
    service.released = asyncio.Event()
    async with served(service, stop_grace_ms=300) as port:
        pending = asyncio.ensure_future(stub(port).Call(call_of("x"), metadata=port.metadata))
        await service.entered.wait()
        await port.end()
        service.released.set()
        with pytest.raises(grpc.aio.AioRpcError):
            await pending
    assert service.seen[-1] == "close"


@pytest.mark.parametrize(
    ("grace", "close", "calls"),
    [(15, None, 10), (700, None, 680), (15, 6.5, 6.5), (15, 60, 5), (6, 6.5, 2), (60, 6.5, 51.5)],
    ids=["unsaid", "unsaid and long", "mcp-pool", "longer than all", "short", "long"],
)
def test_a_stop_leaves_closing_what_it_needs_and_calls_a_third_at_least(grace, close, calls):
    assert calls_share_s(grace, close) == pytest.approx(calls)


async def test_a_service_without_calls_may_use_the_whole_grace_for_closing():
    class Closing(Echo):
        async def close(self):
            await asyncio.sleep(0.8)
            self.seen.append("closed in full")

    service = Closing()
    async with served(service, stop_grace_ms=1500) as port:
        await port.end()
    assert service.seen == ["stop taking", "closed in full"]


async def test_the_socket_is_closed_to_others_and_its_folder_must_be_too():
    with socket_folder() as folder:
        settings = ServerSettings(f"unix:{folder}/s", None)
        stop = asyncio.Event()
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(Echo(), settings, stop, ready.set_result))
        await ready
        assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
        async with open_channel(f"unix:{folder}/s") as channel:
            stub_ = model_executor_pb2_grpc.ModelExecutorStub(channel)
            assert (await stub_.Describe(model_executor_pb2.ModelDescribeRequest())).route == "echo"
        stop.set()
        await task
        folder.chmod(0o755)
        with pytest.raises(StartFailed, match="0700"):
            await serve(Echo(), settings, stop)


async def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        service = Echo()
        with pytest.raises(StartFailed, match=address):
            await serve(service, ServerSettings(address, TOKEN), asyncio.Event())
    assert service.seen == ["close"]


async def test_two_processes_never_share_a_port():
    async with served(Echo(), listen="127.0.0.1:0") as port:
        with pytest.raises(StartFailed):
            await serve(Echo(), ServerSettings(port.address, TOKEN), asyncio.Event())


async def test_tcp_without_a_token_is_refused_at_start():
    with pytest.raises(StartFailed, match="token"):
        await serve(Echo(), ServerSettings("127.0.0.1:0", None), asyncio.Event())


async def test_a_service_that_is_not_ready_says_so_until_it_is():
    class Unready(Echo):
        def bind_readiness(self, set_ready):
            self.set_ready = set_ready
            set_ready(False)

    service = Unready()
    async with served(service) as port:
        watch = health_pb2_grpc.HealthStub(port.channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
        assert (await watch.read()).status == NOT_SERVING
        service.set_ready(True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


def test_the_ping_option_that_works_is_the_one_that_is_set():
    names = dict(server_options(ServerSettings("0.0.0.0:1", TOKEN)))
    assert names["grpc.http2.min_ping_interval_without_data_ms"] == 10_000
    assert "grpc.http2.min_recv_ping_interval_without_data_ms" not in names
    assert names["grpc.max_connection_age_ms"] == 45_000
    assert "grpc.max_connection_age_ms" not in dict(server_options(ServerSettings("unix:/x", TOKEN)))
