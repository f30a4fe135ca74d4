"""A silent call outlives the client's pings (operations 12.8), scaled down from 30 s and 10 minutes."""

import asyncio
import contextlib

import grpc
import pytest
from whippletree.v1 import common_pb2, model_executor_pb2, model_executor_pb2_grpc

from services.common.channel import bearer, channel_options
from services.common.server import ServerSettings, server_options
from tests.common.support import TOKEN

PING_MS = 1000
"""gRPC pings no more often."""
SILENCE_S = 7.0
INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"
IGNORED = "grpc.http2.min_recv_ping_interval_without_data_ms"


class Silent(model_executor_pb2_grpc.ModelExecutorServicer):
    async def Call(self, request, context):
        await asyncio.sleep(SILENCE_S)
        return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text='"at last"'))


@contextlib.asynccontextmanager
async def silent_server(option):
    options = dict(server_options(ServerSettings("127.0.0.1:0", TOKEN)))
    del options[INTERVAL]
    options[option] = PING_MS // 2
    server = grpc.aio.server(options=list(options.items()))
    model_executor_pb2_grpc.add_ModelExecutorServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(address):
    options = dict(channel_options()) | {"grpc.keepalive_time_ms": PING_MS}
    async with grpc.aio.insecure_channel(address, options=list(options.items())) as channel:
        stub = model_executor_pb2_grpc.ModelExecutorStub(channel)
        reply = await stub.Call(model_executor_pb2.ModelCallRequest(), metadata=bearer(TOKEN))
        return reply.outcome.text


async def ended(option):
    async with silent_server(option) as address:
        try:
            return await call(address)
        except grpc.aio.AioRpcError as error:
            return error.code()


@pytest.mark.spec("operations:13.31")
async def test_pings_do_not_cut_a_silent_call_and_the_option_with_the_other_name_would():
    ours, ignored = await asyncio.gather(ended(INTERVAL), ended(IGNORED))
    assert ours == '"at last"'
    assert ignored is grpc.StatusCode.UNAVAILABLE
