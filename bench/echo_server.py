"""The bare end of a hop: answers messages of the product's own types at once, and knows nothing else.

    python -m bench.echo_server

A call gets what a call of the product gets: the same initial metadata, and an answer as large as what the
services answer. No bearer is checked, no table kept, no document read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import common_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2

from bench.processes import say_ready
from services.common.metadata import ACCEPTED, LIMIT_MS
from services.common.process import run_process
from services.common.server import ServerSettings, server_options

UNARY: Final = "/bench.Echo/Unary"
MCP: Final = "/bench.Echo/Mcp"
SANDBOX: Final = "/bench.Echo/Sandbox"

_METADATA: Final = ((ACCEPTED, "1"), (LIMIT_MS, "60000"))


async def _unary(request: model_executor_pb2.ModelCallRequest, context: Any) -> Any:
    await context.send_initial_metadata(_METADATA)
    return model_executor_pb2.ModelCallReply(outcome=common_pb2.Json(text=request.call.text))


async def _mcp(request: Any, context: Any) -> None:
    """Request, accepted, start, result."""
    call = (await context.read()).request
    await context.send_initial_metadata(_METADATA)
    await context.read()
    result = mcp_pool_pb2.ToolCallResult(outcome=common_pb2.Json(text=call.arguments.text))
    await context.write(mcp_pool_pb2.ToolCallReply(result=result))


async def _sandbox(request: Any, context: Any) -> None:
    """Request, accepted, start, one event and its answer, outcome."""
    operation = (await context.read()).request
    await context.send_initial_metadata(_METADATA)
    await context.read()
    event = sandbox_manager_pb2.SandboxEvent(
        seq=1,
        session_id=operation.workspace.owner_id,
        turn_id=operation.workspace.active_turn_id,
        type="sandbox.exec",
        payload=common_pb2.Json(text=_EVENT),
    )
    await context.write(sandbox_manager_pb2.RunReply(event=event))
    await context.read()
    outcome = common_pb2.Json(text=operation.tool.input.text)
    await context.write(sandbox_manager_pb2.RunReply(outcome=outcome))


_EVENT: Final = '{"tool":"read","path":"/workspace/bench.txt","ok":true,"durationMs":1}'


def _handlers() -> Any:
    requests = {
        UNARY: grpc.unary_unary_rpc_method_handler(
            _unary,
            model_executor_pb2.ModelCallRequest.FromString,
            model_executor_pb2.ModelCallReply.SerializeToString,
        ),
        MCP: grpc.stream_stream_rpc_method_handler(
            _mcp,
            mcp_pool_pb2.ToolCallRequest.FromString,
            mcp_pool_pb2.ToolCallReply.SerializeToString,
        ),
        SANDBOX: grpc.stream_stream_rpc_method_handler(
            _sandbox,
            sandbox_manager_pb2.RunRequest.FromString,
            sandbox_manager_pb2.RunReply.SerializeToString,
        ),
    }
    methods = {path.rpartition("/")[2]: handler for path, handler in requests.items()}
    return grpc.method_handlers_generic_handler("bench.Echo", methods)


async def serve(stop: asyncio.Event) -> None:
    """Serves on a free port of the loopback until `stop` is set."""
    settings = ServerSettings("127.0.0.1:0", None)
    server = grpc.aio.server(options=server_options(settings))
    server.add_generic_rpc_handlers((_handlers(),))
    port = server.add_insecure_port(settings.listen)
    await server.start()
    say_ready(target=f"127.0.0.1:{port}")
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    raise SystemExit(run_process(serve, uvloop=True))
