"""A session's log as server-sent events: what there is, then what comes, resumed by the last id."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from protocol import jsjson
from services.dev_core.core import Core
from services.dev_core.store.events import Event

PAGE_EVENTS: Final = 200
PAGE_CHARS: Final = 4 * 1024 * 1024
HEARTBEAT_S: Final = 15.0
RETRY_MS: Final = 1000
STOPPING: Final = web.AppKey("stopping", asyncio.Event)


async def stream_events(core: Core, request: web.Request, session_id: str, after: int) -> web.StreamResponse:
    """Streams events after a seq until the client leaves or the core stops.

    Each event's id is its seq and its name the event's type, so that a browser resumes by itself.
    """
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "X-Content-Type-Options": "nosniff",
        }
    )
    await response.prepare(request)
    stopping = request.app[STOPPING]
    watcher = core.bus.watch(session_id)
    try:
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        while not stopping.is_set():
            watcher.clear()
            page, more = await core.next_events(session_id, after, limit=PAGE_EVENTS, max_chars=PAGE_CHARS)
            if page:
                await response.write(b"".join(_encode(event, session_id) for event in page))
                after = page[-1].seq
            if not more and not await watcher.wait(HEARTBEAT_S):
                await response.write(b": still here\n\n")
        await response.write_eof()
    except ConnectionError:
        pass  # The reader left; it resumes from its last id.
    finally:
        core.bus.unwatch(session_id, watcher)
    return response


def _encode(event: Event, session_id: str) -> bytes:
    data = jsjson.dumps_bytes(event.document(session_id), plain=True)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.type.encode(), data)
