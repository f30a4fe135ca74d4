"""The conversation of `Sweep`: a beginning, events that wait for their answers, at last the records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import sandbox_manager_pb2

from services.common.errors import invalid
from services.common.logs import get_logger
from services.sandbox_manager.events import Emit, SandboxEvent
from services.sandbox_manager.messages import event_message

REQUEST_LIMIT_S: Final = 30.0
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class SweepStream:
    """Serves sweeps; `ack_limit_s` bounds the wait for the answer to one event."""

    def __init__(self, ack_limit_s: float) -> None:
        self._ack_limit_s = ack_limit_s

    async def read_begin(self, context: Any) -> sandbox_manager_pb2.SweepBegin:
        """The first message. Raises Refused."""
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                first = await context.read()
        except TimeoutError:
            raise invalid("No request came.") from None
        if first is _EOF or first.WhichOneof("message") != "begin":
            raise invalid("The first message must be begin.")
        await context.send_initial_metadata(())
        begin: sandbox_manager_pb2.SweepBegin = first.begin
        return begin

    @contextlib.asynccontextmanager
    async def events(self, context: Any) -> AsyncIterator[Emit]:
        """Gives what sends events; several may wait for their answers at once."""
        waiting: dict[int, asyncio.Future[None]] = {}
        writing = asyncio.Lock()
        sent, gone = 0, False

        async def read() -> None:
            nonlocal gone
            while (message := await context.read()) is not _EOF:
                if message.WhichOneof("message") == "ack":
                    _settle(waiting.pop(message.ack.seq, None))
            gone = True
            for future in waiting.values():
                _settle(future)

        async def emit(event: SandboxEvent) -> None:
            nonlocal sent
            sent += 1
            seq = sent
            if gone:
                return
            answered = waiting[seq] = asyncio.get_running_loop().create_future()
            async with writing:
                await context.write(sandbox_manager_pb2.SweepReply(event=event_message(seq, event)))
            try:
                async with asyncio.timeout(self._ack_limit_s):
                    await answered
            except TimeoutError:
                get_logger().warning(
                    "sandbox_event_not_answered",
                    sessionId=event.session_id,
                    type=event.type,
                    seconds=self._ack_limit_s,
                )
            finally:
                waiting.pop(seq, None)

        reader = asyncio.create_task(read())
        try:
            yield emit
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
