"""A connection to an MCP server that is our child process: one JSON-RPC object a line (mcp-pool 3 and 4).

Nothing here owns a task. The loop hands in what the child wrote, requests wait for futures, and whoever
made the connection closes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protocol.jsjson import JsonValue
from protocol.mcp_client import initialize_params
from services.common import telemetry
from services.common.children import Child, ChildNotStarted, ChildSpec, Keeper, StreamName, start_child
from services.common.logs import trace_context
from services.mcp_pool import aborts
from services.mcp_pool import limits as fixed
from services.mcp_pool.connection import Abort, ToolAnswer, ToolRequest, ToolsPage
from services.mcp_pool.failures import (
    AnswerInvalid,
    ConnectionLost,
    LaunchFailed,
    McpFailure,
    NotSent,
    RequestAborted,
    RequestTimedOut,
    ServerError,
)
from services.mcp_pool.jsonrpc import (
    Answer,
    ErrorAnswer,
    Incoming,
    LineSplitter,
    LineTooLong,
    ServerRequest,
    TooDeep,
    ToolsListChanged,
    may_matter,
    read_message,
    write_notification,
    write_reply,
    write_request,
)
from services.mcp_pool.limits import Limits
from services.mcp_pool.results import (
    check_call_result,
    check_initialize,
    check_tools_page,
)
from services.mcp_pool.shares import Shares

EXIT_NEWS_SECONDS: Final = 0.05
"""After the end of a server's output, how long its exit code may take to be known: for the error's text."""


@dataclass(slots=True)
class _Waiter:
    """A request without an answer yet. `mark`: where it ends in all that was written to the server."""

    answer: asyncio.Future[Answer]
    mark: int
    flushed: bool


class StdioConnection:
    """See Connection.

    `on_end` is called once, when no new request can be sent any more; `on_gone` when it is closed and nothing
    of the server is left that we could end. With `traceparent` a call carries the trace in its `_meta`.
    Connections with the same `shares` have one share of the loop's time together, should they say much.
    """

    def __init__(
        self,
        limits: Limits,
        on_end: Callable[[StdioConnection], None],
        keeper: Keeper | None = None,
        on_gone: Callable[[StdioConnection], None] | None = None,
        *,
        traceparent: bool = False,
        shares: Shares | None = None,
    ) -> None:
        self._limits = limits
        self._keeper = keeper
        self._on_gone = on_gone
        self._traceparent = traceparent
        self._shares = shares or Shares()
        self._on_end: Callable[[StdioConnection], None] | None = on_end
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._splitter = LineSplitter(fixed.LINE_BYTES, may_matter)
        self._lines: deque[bytes] = deque()
        self._paused = False
        self._parsing = 0
        self._waiting: dict[int, _Waiter] = {}
        self._next_id = 0
        self._enqueued = 0
        self._output_over = False
        self._exit_code: int | None = None
        self._stdin_closed = False
        self._over: str | None = None
        self._tools_changed: Callable[[], None] | None = None

    # -- what the pool uses

    @property
    def usable(self) -> bool:
        """New requests can be sent."""
        return self._over is None and not self._stdin_closed and self._child is not None

    @property
    def pid(self) -> int | None:
        """The server's process id; for tests and logs."""
        return self._child.pid if self._child is not None else None

    async def open(self, launch: ChildSpec) -> None:
        """Starts the server and initialises the session. Raises McpFailure; close is called all the same."""
        try:
            self._child = await start_child(launch, self, self._stdin_was_closed, self._keeper)
        except ChildNotStarted as error:
            raise LaunchFailed(str(error)) from None
        answer = await self._request("initialize", initialize_params(), plain=True)
        check_initialize(answer.result)
        self._write(write_notification("notifications/initialized"))

    async def list_page(self, cursor: str | None) -> ToolsPage:
        """One page of tools."""
        params: JsonValue = None if cursor is None else {"cursor": cursor}
        answer = await self._request("tools/list", params, plain=True)
        tools, next_cursor = check_tools_page(answer.result)
        return ToolsPage(tools, next_cursor, answer.plain, answer.size)

    async def call_tool(self, request: ToolRequest, abort: Abort) -> ToolAnswer:
        """Calls a tool."""
        params: dict[str, Any] = {"name": request.name, "arguments": request.arguments}
        if not telemetry.current.enabled:
            answer = await self._traced_call(params, trace_context.get(), abort)
        else:
            attributes = {"mcp.method.name": "tools/call", "gen_ai.tool.name": request.name}
            name = f"tools/call {request.name}"
            with telemetry.current.span(name, attributes, trace_context.get()) as trace:
                answer = await self._traced_call(params, trace, abort)
        return ToolAnswer(check_call_result(answer.result), answer.plain, answer.size)

    async def _traced_call(self, params: dict[str, Any], trace: str | None, abort: Abort) -> Answer:
        if self._traceparent and trace is not None:
            params["_meta"] = {"traceparent": trace}
        return await self._request("tools/call", params, plain=True, abort=abort)

    async def close(self) -> None:
        """Ends the connection and the server's process group."""
        self._finish("The connection to the MCP server was closed.")
        try:
            if self._child is not None:
                await self._child.stop(self._limits.grace)
        finally:
            if self._on_gone is not None:
                self._on_gone(self)

    def on_tools_changed(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever the server says that its tools are others now."""
        self._tools_changed = listener

    # -- requests

    async def _request(
        self, method: str, params: JsonValue, *, plain: bool, abort: Abort | None = None
    ) -> Answer:
        await self._until_it_reads(abort)
        if not self.usable:
            raise NotSent(self._over or "The MCP server has closed its input.")
        id_, self._next_id = self._next_id, self._next_id + 1
        line = write_request(id_, method, params, plain)
        future: asyncio.Future[Answer] = self._loop.create_future()
        waiter = _Waiter(future, self._enqueued + len(line), flushed=False)
        if abort is not None:
            abort.listen(lambda kind: _abort(future, kind))
            if future.done():
                await future
        self._waiting[id_] = waiter
        self._write(line)
        waiter.flushed = self._child is not None and self._child.unwritten == 0
        try:
            async with asyncio.timeout(self._limits.request):
                return await future
        except TimeoutError:
            self._give_up(id_, "Request timed out")
            if self._unwritten_of(waiter):
                self._finish("The MCP server stopped reading its input.")
            seconds = f"{self._limits.request:g}"
            raise RequestTimedOut(f"The MCP server did not answer {method} within {seconds} s.") from None
        except (RequestAborted, asyncio.CancelledError):
            self._give_up(id_, "The call was cancelled")
            raise
        finally:
            self._waiting.pop(id_, None)
            _settle(future)

    async def _until_it_reads(self, abort: Abort | None) -> None:
        """Waits while much of what was written before has not been read. Raises RequestAborted.

        A server that reads nothing for the time of a request is given up.
        """
        until = self._loop.time() + self._limits.request
        while self.usable and self._child is not None and self._child.unwritten > fixed.BACKLOG_BYTES:
            if abort is not None and abort.kind is not None and abort.kind in aborts.STDIO:
                raise RequestAborted(abort.kind)
            if self._loop.time() > until:
                self._finish("The MCP server stopped reading its input.")
                return
            await asyncio.sleep(fixed.BACKLOG_LOOK_SECONDS)

    def _give_up(self, id_: int, reason: str) -> None:
        if self.usable:
            self._write(write_notification("notifications/cancelled", {"requestId": id_, "reason": reason}))

    def _write(self, line: bytes) -> None:
        if self._child is not None and self._child.write(line):
            self._enqueued += len(line)

    def _unwritten_of(self, waiter: _Waiter) -> bool:
        unwritten = self._child.unwritten if self._child is not None else 0
        return self._enqueued - unwritten < waiter.mark

    # -- what the child says

    def child_output(self, stream: StreamName, data: bytes) -> None:
        """Output came: whole lines are handled, as many as one turn may take."""
        if self._over is not None:
            return
        try:
            self._lines.extend(self._splitter.feed(data))
        except LineTooLong:
            size = fixed.LINE_BYTES // (1024 * 1024)
            self._finish(f"The MCP server wrote more than {size} MiB without a line end.")
            return
        if not self._paused:
            self._handle_lines()
            if not self._paused and self._splitter.skipped > fixed.SKIPPED_BYTES:
                self._pause()

    def child_output_ended(self, stream: StreamName) -> None:
        """Nothing more will be read; the end waits for what was read already, and shortly for the exit."""
        self._output_over = True
        if self._exit_code is None:
            self._loop.call_later(EXIT_NEWS_SECONDS, self._end_if_drained, True)
        else:
            self._end_if_drained()

    def child_exited(self, returncode: int) -> None:
        """The server is gone. What it wrote may still be in the pipe; a child of its may hold it open."""
        self._exit_code = returncode
        if self._output_over:
            self._end_if_drained()
        else:
            self._loop.call_later(self._limits.drain, self._stop_draining)

    def _stop_draining(self) -> None:
        self._output_over = True
        self._end_if_drained()

    def _stdin_was_closed(self) -> None:
        self._stdin_closed = True
        for waiter in self._waiting.values():
            if not waiter.flushed:
                _fail(waiter.answer, ConnectionLost("The MCP server has closed its input."))
        self._say_ended()

    def _handle_lines(self) -> None:
        size, count, until = 0, 0, self._loop.time() + fixed.TURN_SECONDS
        while self._lines:
            if size > fixed.TURN_BYTES or count >= fixed.TURN_LINES or self._loop.time() > until:
                self._pause()
                return
            line = self._lines.popleft()
            size += len(line)
            count += 1
            if len(line) > fixed.PARSE_OFF_LOOP_BYTES:
                self._parse_in_thread(line)
            else:
                self._take(read_message(line))
        self._end_if_drained()

    def _pause(self) -> None:
        if not self._paused and self._child is not None:
            self._paused = True
            self._child.pause_output("stdout")
        self._shares.wait(self._go_on)

    def _go_on(self) -> None:
        if self._over is not None:
            return
        self._handle_lines()
        if not self._lines and self._paused and self._child is not None:
            self._paused = False
            self._child.resume_output("stdout")

    def _parse_in_thread(self, line: bytes) -> None:
        self._parsing += 1

        def parsed(future: asyncio.Future[Incoming | None]) -> None:
            self._parsing -= 1
            if not future.cancelled():
                self._take(future.result())
            self._end_if_drained()

        self._loop.run_in_executor(None, read_message, line).add_done_callback(parsed)

    def _take(self, message: Incoming | None) -> None:
        match message:
            case None:
                return
            case ServerRequest():
                # A server that asks without reading the answers gets none.
                if self._child is not None and self._child.unwritten < fixed.REPLY_BACKLOG_BYTES:
                    self._write(write_reply(message))
                return
            case ToolsListChanged():
                if self._tools_changed is not None:
                    self._tools_changed()
                return
        waiter = self._waiting.get(message.id)
        if waiter is None or waiter.answer.done():
            return
        match message:
            case Answer():
                waiter.answer.set_result(message)
            case ErrorAnswer(code=code, message=text):
                _fail(waiter.answer, ServerError(f"MCP error {code}: {text}", code=code))
            case TooDeep():
                _fail(waiter.answer, AnswerInvalid("The MCP server's answer nests too deep."))

    # -- the end

    def _end_if_drained(self, even_without_exit: bool = False) -> None:
        known = self._exit_code is not None or even_without_exit
        if self._output_over and known and not self._lines and not self._parsing:
            self._finish(self._end_text())

    def _end_text(self) -> str:
        code = self._exit_code
        if code is None:
            return "The MCP server has closed its output."
        return (
            f"The MCP server was ended by signal {-code}." if code < 0 else f"The MCP server exited ({code})."
        )

    def _finish(self, reason: str) -> None:
        if self._over is not None:
            return
        self._over = reason
        self._lines.clear()
        for waiter in self._waiting.values():
            _fail(waiter.answer, ConnectionLost(reason))
        self._say_ended()

    def _say_ended(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)


def _abort(answer: asyncio.Future[Answer], kind: int) -> None:
    if kind in aborts.STDIO:
        _fail(answer, RequestAborted(kind))


def _settle(answer: asyncio.Future[Answer]) -> None:
    """Nobody waits any more: what comes later, or came at the last moment, is not news."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


def _fail(answer: asyncio.Future[Answer], error: McpFailure | RequestAborted) -> None:
    if not answer.done():
        answer.set_exception(error)
