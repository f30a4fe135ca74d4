"""A helper process: a model provider, or a gate, that answers at once or holds its answers back.

`python -m bench.provider_server SIZE`: answers have SIZE bytes of text. It says its URL when it serves.

* `POST .../chat/completions`: Chat Completions, streamed in pieces of 64 bytes when the request asks for it.
* `POST /nylorun/v1/model-calls`: the gate's way, one JSON document.
* Paths that begin with `/held` are not answered until `POST /release`.
* `GET /counts`: requests so far, those held now, and those whose client went away.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final

import uvloop

from bench.processes import say_ready

_PIECE: Final = 64


def _sse(text: str) -> bytes:
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    events: list[Any] = [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        for choice in (
            *({"index": 0, "delta": {"content": piece}, "finish_reason": None} for piece in pieces),
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        )
    ]
    events.append({**events[-1], "choices": [], "usage": _USAGE})
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return body + b"data: [DONE]\n\n"


_USAGE: Final = {"prompt_tokens": 256, "completion_tokens": 256, "total_tokens": 512}


def _head(kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class _Answers:
    """What is sent, made once; and what happened."""

    def __init__(self, size: int) -> None:
        text = "a" * size
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        whole = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": _USAGE,
        }
        outcome = {"outcome": {"output": [{"type": "text", "text": text}]}}
        self.stream = _head("text/event-stream", _sse(text))
        self.whole = _head("application/json", json.dumps(whole).encode())
        self.gate = _head("application/json", json.dumps(outcome).encode())
        self.requests = 0
        self.lost = 0
        self.held: dict[_Connection, bytes] = {}


class _Connection(asyncio.Protocol):
    """HTTP/1.1, as much of it as the clients of the benchmarks speak."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._buffer = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answers.held.pop(self, None) is not None:
            self._answers.lost += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (request := self._next()) is not None:
            path, body = request
            self._serve(path, body)

    def _next(self) -> tuple[str, bytes] | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self._buffer[:end]).decode("latin-1")
        first, *lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        start = end + 4
        if fields.get("transfer-encoding", "").lower() == "chunked":
            return self._chunked(first.split(" ")[1], start)
        length = int(fields.get("content-length", "0"))
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return first.split(" ")[1], body

    def _chunked(self, path: str, at: int) -> tuple[str, bytes] | None:
        body = bytearray()
        while True:
            end = self._buffer.find(b"\r\n", at)
            if end < 0:
                return None
            size = int(self._buffer[at:end], 16)
            if len(self._buffer) < end + 2 + size + 2:
                return None
            body += self._buffer[end + 2 : end + 2 + size]
            at = end + 2 + size + 2
            if not size:
                del self._buffer[:at]
                return path, bytes(body)

    def _serve(self, path: str, body: bytes) -> None:
        answers = self._answers
        if path == "/counts":
            counts = {"requests": answers.requests, "held": len(answers.held), "lost": answers.lost}
            self._transport.write(_head("application/json", json.dumps(counts).encode()))
            return
        if path == "/release":
            held, answers.held = answers.held, {}
            for connection, answer in held.items():
                connection._transport.write(answer)
            self._transport.write(_head("application/json", b"{}"))
            return
        answers.requests += 1
        if path.endswith("/model-calls"):
            answer = answers.gate
        else:
            streamed = b'"stream":true' in body or b'"stream": true' in body
            answer = answers.stream if streamed else answers.whole
        if path.startswith("/held") or (path.startswith("/nylorun") and b'"hold"' in body):
            answers.held[self] = answer
        else:
            self._transport.write(answer)


async def _main(size: int) -> None:
    answers = _Answers(size)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answers), "127.0.0.1", 0, backlog=4096)
    say_ready(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(int(sys.argv[1])))
