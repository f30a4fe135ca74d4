"""Model providers over real sockets: OpenAI-compatible Chat Completions and Anthropic Messages, streamed.

`replies` are given to requests in turn, the last one to all that follow. A reply is a coroutine that gets
the wire; the functions below make them.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.doubles.http import HttpDouble, Request, Wire

Reply = Callable[[Wire], Awaitable[None]]
SSE = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}


@dataclass
class ProviderDouble(HttpDouble):
    """Both wire formats; which one follows from the replies. `lost` counts clients that did not wait."""

    replies: list[Reply] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    answered: int = 0
    lost: int = 0

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.requests]

    async def serve(self, request: Request, wire: Wire) -> None:
        self.arrived.set()
        assert request.method == "POST"
        assert request.target.endswith(("/chat/completions", "/v1/messages"))
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        try:
            if await wire.unless_gone(reply(wire)):
                self.answered += 1
                return
            wire.closed = True
        except (OSError, asyncio.CancelledError):
            self.gone.set()
            raise
        self.lost += 1
        self.gone.set()


async def chunk(wire: Wire, data: bytes) -> None:
    await wire.send(b"%x\r\n%s\r\n" % (len(data), data))


def _frame(event: Any, named: bool) -> bytes:
    text = event if isinstance(event, str) else json.dumps(event)
    name = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
    return f"{name}data: {text}\n\n".encode()


def stream(
    events: Iterable[Any],
    *,
    named: bool = False,
    end: str = "whole",
    headers: dict[str, str] | None = None,
    byte_by_byte: bool = False,
    zipped: bool = False,
) -> Reply:
    """A 200 with events. `end`: "whole", "cut" (a reset in the middle) or "stall" (silence)."""
    frames = [_frame(event, named) for event in events]

    async def reply(wire: Wire) -> None:
        given = {**SSE, **(headers or {})}
        if zipped:
            await wire.head(200, {**given, "content-encoding": "gzip"})
            await chunk(wire, gzip.compress(b"".join(frames)))
        else:
            await wire.head(200, given)
            for frame in frames:
                pieces = [frame[at : at + 1] for at in range(len(frame))] if byte_by_byte else [frame]
                for piece in pieces:
                    await chunk(wire, piece)
        if end == "cut":
            wire.reset()
        elif end == "stall":
            await asyncio.Event().wait()
        else:
            await wire.send(b"0\r\n\r\n")

    return reply


def status(code: int, body: Any = b"", headers: dict[str, str] | None = None) -> Reply:
    """An answer of one piece."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def reply(wire: Wire) -> None:
        await wire.answer(code, text, headers)

    return reply


def cut() -> Reply:
    """No answer: a reset."""

    async def reply(wire: Wire) -> None:
        wire.reset()

    return reply


def held(go: asyncio.Event, then: Reply) -> Reply:
    """Answers when the test says so."""

    async def reply(wire: Wire) -> None:
        await go.wait()
        await then(wire)

    return reply


# Chat Completions.


def delta(finish: str | None = None, usage: Any = None, model: str = "m-1", **parts: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "model": model,
        "choices": [{"index": 0, "delta": parts, "finish_reason": finish}],
    }
    return made if usage is None else made | {"usage": usage}


def openai_text(text: str = "hello", **more: Any) -> Reply:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
    events = [delta(content=text), delta("stop"), {"model": "m-1", "choices": [], "usage": usage}, "[DONE]"]
    return stream(events, **more)


# Messages.


def anthropic(
    *blocks: tuple[dict[str, Any], list[dict[str, Any]]],
    stop: str | None = "end_turn",
    whole: bool = True,
    **more: Any,
) -> Reply:
    """A message of blocks, each with its deltas."""
    usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 1}
    events: list[Any] = [
        {"type": "message_start", "message": {"model": "a-1", "usage": usage}},
        {"type": "ping"},
    ]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    if stop is not None:
        events.append(
            {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 10}}
        )
    if whole:
        events.append({"type": "message_stop"})
    return stream(events, named=True, **more)


def anthropic_text(text: str = "hello") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": text}]
