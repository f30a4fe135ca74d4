"""Who watches a session's log, and when they are woken to read on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

GATHER_S: Final = 0.05
"""How long news of a session may wait for more, unless they say how its turn stands."""


class Watcher:
    """Wakes one reader of a session's log: at once for news that it waits for, for others after a moment,
    so that what a turn says in a row is read together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_news = False
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Future[bool] | None = None

    def tell(self, *, at_once: bool) -> None:
        """The session got events."""
        if at_once:
            self._wake()
        elif self._timer is None and not self._has_news:
            self._timer = self._loop.call_later(GATHER_S, self._wake)

    def clear(self) -> None:
        """The reader reads now: what came so far is no news any more."""
        self._stop_timer()
        self._has_news = False

    async def wait(self, seconds: float) -> bool:
        """Waits for news; False when there were none for so long. For one reader at a time."""
        if self._has_news:
            return True
        reader: asyncio.Future[bool] = self._loop.create_future()
        self._reader = reader
        timeout = self._loop.call_later(seconds, _answer, reader, False)
        try:
            return await reader
        finally:
            timeout.cancel()
            self._reader = None

    def _wake(self) -> None:
        self._stop_timer()
        self._has_news = True
        if self._reader is not None:
            _answer(self._reader, True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _answer(reader: asyncio.Future[bool], answer: bool) -> None:
    if not reader.done():
        reader.set_result(answer)


class EventBus:
    """Wakes whoever watches a session when it got events."""

    def __init__(self) -> None:
        self._watchers: defaultdict[str, set[Watcher]] = defaultdict(set)

    def announce(self, sessions: Mapping[str, bool]) -> None:
        """These sessions got events; with True one that is to be shown at once."""
        for session_id, at_once in sessions.items():
            for watcher in self._watchers.get(session_id, ()):
                watcher.tell(at_once=at_once)

    def watch(self, session_id: str) -> Watcher:
        """Is woken whenever the session got events."""
        watcher = Watcher()
        self._watchers[session_id].add(watcher)
        return watcher

    def unwatch(self, session_id: str, watcher: Watcher) -> None:
        """Nobody reads there any more."""
        watcher.clear()
        self._watchers[session_id].discard(watcher)
        if not self._watchers[session_id]:
            del self._watchers[session_id]

    def wake_all(self) -> None:
        """Wakes every watcher, for the end."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.tell(at_once=True)
