"""A bare WebSocket end that commits one row per message: the least that a journal can cost.

    python -m bench.floor_server FILE

Each text is written into an SQLite file as the development core has it (WAL, `synchronous=NORMAL`) and
committed before the answer, in the loop itself and without a second thread. A text that begins with
`intent` gets an answer of a few bytes, every other one its own text back.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from typing import Final

from websockets.asyncio.server import ServerConnection, serve

from bench.processes import say_ready
from services.common.process import run_process

INTENT: Final = "intent"
SHORT: Final = '{"t":"res","id":1,"ok":true,"r":{"status":"execute"}}'
_MAX_BYTES: Final = 64 * 1024 * 1024


async def serve_floor(path: str, stop: asyncio.Event) -> None:
    """Serves on a free port of the loopback until `stop` is set."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE messages (number INTEGER PRIMARY KEY, text TEXT NOT NULL)")

    async def answer(socket: ServerConnection) -> None:
        async for message in socket:
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO messages (text) VALUES (?)", (message,))
            database.execute("COMMIT")
            await socket.send(SHORT if str(message).startswith(INTENT) else message)

    async with serve(
        answer, "127.0.0.1", 0, compression=None, max_size=_MAX_BYTES, ping_interval=None
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        say_ready(url=f"ws://127.0.0.1:{port}")
        await stop.wait()
    database.close()


if __name__ == "__main__":
    raise SystemExit(run_process(lambda stop: serve_floor(sys.argv[1], stop), uvloop=True))
