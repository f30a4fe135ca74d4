"""People of the development core: each has a session, sends a message, waits for the turn, sends the next."""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from cli.core_client import CoreClient

TURN_S: Final = 120.0
_MOST_LINE_BYTES: Final = 1 << 20
_COMPLETED: Final = b"event: turn.completed"
_ENDS: Final = (
    b"event: turn.failed",
    b"event: turn.cancelled",
    b"event: turn.paused",
    b"event: turn.uncertain",
)


class TurnFailed(Exception):
    """A turn did not complete."""


async def play(url: str, agent_id: str, sessions: int, turns: int) -> None:
    """Runs all sessions at once, each so many turns. Raises TurnFailed."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=TURN_S)
    async with (
        CoreClient(url) as core,
        aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=_MOST_LINE_BYTES) as http,
    ):
        ids = [await core.create_session(agent_id) for _ in range(sessions)]
        try:
            async with asyncio.TaskGroup() as group:
                for session_id in ids:
                    group.create_task(_converse(http, f"{url}/v1/sessions/{session_id}", turns))
        except BaseExceptionGroup as failures:
            raise TurnFailed(str(failures.exceptions[0])) from failures


async def _converse(http: aiohttp.ClientSession, session_url: str, turns: int) -> None:
    async with http.get(f"{session_url}/events") as events:
        for number in range(turns):
            async with http.post(f"{session_url}/messages", json={"text": f"message {number}"}) as answer:
                if answer.status != 202:
                    raise TurnFailed(await answer.text())
            await _until_completed(events)


async def _until_completed(events: aiohttp.ClientResponse) -> None:
    async for line in events.content:
        if line.startswith(_COMPLETED):
            return
        if line.startswith(_ENDS):
            raise TurnFailed((line + await events.content.readline()).decode())
    raise TurnFailed("The core ended the stream of events.")
