"""A model of your own: an HTTP server with the chat completions of OpenAI's API. This one repeats you."""

import json
import sys

from aiohttp import web


async def complete(request: web.Request) -> web.StreamResponse:
    """Answers a call, as a stream of chunks or in one piece."""
    asked = await request.json()
    texts = [message["content"] for message in asked["messages"] if message["role"] == "user"]
    answer = f"You said: {as_text(texts[-1])}" if texts else "You said nothing."
    usage = {"prompt_tokens": len(str(texts)), "completion_tokens": len(answer)}
    usage["total_tokens"] = sum(usage.values())
    head = {"id": "c1", "created": 0, "model": asked["model"]}
    if not asked.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    for delta, reason in (({"role": "assistant", "content": answer}, None), ({}, "stop")):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        await send(stream, {**head, "object": "chat.completion.chunk", "choices": [choice]})
    await send(stream, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    await stream.write(b"data: [DONE]\n\n")
    return stream


def as_text(content: str | list) -> str:
    """A message's text, which may come in parts."""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


async def send(stream: web.StreamResponse, chunk: dict) -> None:
    """One event."""
    await stream.write(f"data: {json.dumps(chunk)}\n\n".encode())


app = web.Application()
app.router.add_post("/v1/chat/completions", complete)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8099)
