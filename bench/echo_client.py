"""The other bare end: conversations of the same messages and metadata, without any of the product's client."""

from __future__ import annotations

from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
from whippletree.v1 import common_pb2, mcp_pool_pb2, model_executor_pb2, sandbox_manager_pb2

from bench.echo_server import MCP, SANDBOX, UNARY
from services.common.channel import open_channel
from services.common.metadata import Metadata


class EchoClient:
    """A channel to the echo server. `metadata` goes with every call."""

    def __init__(self, target: str, metadata: Metadata) -> None:
        self._channel = open_channel(target)
        self._metadata = metadata
        self._unary = self._channel.unary_unary(
            UNARY,
            request_serializer=model_executor_pb2.ModelCallRequest.SerializeToString,
            response_deserializer=model_executor_pb2.ModelCallReply.FromString,
        )
        self._mcp: Any = self._channel.stream_stream(
            MCP,
            request_serializer=mcp_pool_pb2.ToolCallRequest.SerializeToString,
            response_deserializer=mcp_pool_pb2.ToolCallReply.FromString,
        )
        self._sandbox: Any = self._channel.stream_stream(
            SANDBOX,
            request_serializer=sandbox_manager_pb2.RunRequest.SerializeToString,
            response_deserializer=sandbox_manager_pb2.RunReply.FromString,
        )

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close(None)

    async def unary(self, request: model_executor_pb2.ModelCallRequest) -> str:
        """Sends a model call and gets a text of its size."""
        reply = await self._unary(request, metadata=self._metadata)
        text: str = reply.outcome.text
        return text

    async def mcp(self, request: mcp_pool_pb2.ToolCall) -> str:
        """Request, accepted, start, result, end."""
        stream = self._mcp(metadata=self._metadata)
        await stream.write(mcp_pool_pb2.ToolCallRequest(request=request))
        await stream.initial_metadata()
        await stream.write(mcp_pool_pb2.ToolCallRequest(start=common_pb2.Start()))
        reply = await stream.read()
        await stream.read()
        text: str = reply.result.outcome.text
        return text

    async def sandbox(self, request: sandbox_manager_pb2.WorkspaceOperation) -> str:
        """Request, accepted, start, event, its answer, outcome, end."""
        stream = self._sandbox(metadata=self._metadata)
        await stream.write(sandbox_manager_pb2.RunRequest(request=request))
        await stream.initial_metadata()
        await stream.write(sandbox_manager_pb2.RunRequest(start=common_pb2.Start()))
        event = (await stream.read()).event
        ack = sandbox_manager_pb2.EventAck(seq=event.seq)
        await stream.write(sandbox_manager_pb2.RunRequest(ack=ack))
        reply = await stream.read()
        await stream.read()
        text: str = reply.outcome.text
        return text
