"""One turn of `chat`: sends a message, shows what happens, and says how it ended. Ctrl-C cancels it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cli.core_client import CoreClient, CoreError, Document
from cli.event_lines import Said, said
from cli.plain_text import as_text, plain
from cli.screen import Screen

ENDS: Final = frozenset(
    {
        "turn.completed",
        "turn.failed",
        "turn.cancelled",
        "turn.paused",
        "turn.uncertain",
        "agent.paused",
        "agent.uncertain",
    }
)


class Abandoned(Exception):
    """The second Ctrl-C: the chat ends at once."""


@dataclass(slots=True)
class Talk:
    """A session as a chat sees it: how far its log was shown."""

    core: CoreClient
    screen: Screen
    session_id: str
    seen: int = 0
    turn_id: str | None = None
    last_answer: str = field(default="", repr=False)

    async def say(self, message: Document) -> str:
        """Starts a turn and follows it, see `follow`."""
        self.last_answer = ""
        return await self._guarded(message)

    async def follow(self) -> str:
        """Shows the log until the turn ends or waits for a person; that event's name.

        The first Ctrl-C asks the core to cancel the turn. Raises CoreError, and Abandoned at the second.
        """
        return await self._guarded(None)

    async def _guarded(self, message: Document | None) -> str:
        with _interrupts() as interrupts:
            under_way = asyncio.Event()
            reading = asyncio.create_task(self._until_end(message, under_way))
            at_once = asyncio.create_task(interrupts.second.wait())
            waiting = asyncio.create_task(self.screen.waiting("working (Ctrl-C cancels)"))
            cancelling = asyncio.create_task(self._cancel_at(interrupts.first, under_way))
            try:
                await asyncio.wait((reading, at_once), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    raise Abandoned
                return reading.result()
            finally:
                tasks = (reading, at_once, waiting, cancelling)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_end(self, message: Document | None, under_way: asyncio.Event) -> str:
        if message is not None:
            self.turn_id = await self.core.send(self.session_id, message)
        under_way.set()
        async for name, event in self.core.events(self.session_id, self.seen):
            self.seen = int(event["seq"])
            payload: Any = event.get("payload") or {}
            for one in said(name, payload):
                if one.kind == "answer":
                    self.last_answer = one.text
                self.screen.show(one)
            if name in ENDS:
                self._end(name, payload)
                return name
        raise CoreError("The development core ended the stream of events.")

    def _end(self, name: str, payload: Document) -> None:
        match name:
            case "turn.completed":
                output = plain(as_text(payload.get("output")))
                if output.strip() and output != self.last_answer:
                    self.screen.show(Said("answer", output))
            case "turn.failed":
                error = payload.get("error") or {}
                text = f"The turn failed: {error.get('code', '')} {error.get('message', '')}".rstrip()
                self.screen.show(Said("problem", plain(text)))
            case "turn.cancelled":
                self.screen.show(Said("note", "The turn was cancelled."))

    async def _cancel_at(self, interrupted: asyncio.Event, under_way: asyncio.Event) -> None:
        await interrupted.wait()
        await under_way.wait()
        self.screen.show(Said("note", "cancelling the turn; Ctrl-C again ends the chat at once"))
        try:
            await self.core.cancel(self.session_id)
        except CoreError as error:
            self.screen.show(Said("problem", plain(str(error))))


class _Interrupts:
    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


@contextlib.contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    loop = asyncio.get_running_loop()
    interrupts = _Interrupts()
    loop.add_signal_handler(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        loop.remove_signal_handler(signal.SIGINT)
