"""Tells people when a server's tools are no longer those of its session's snapshot.

The snapshot, the session's tools and what core hears stay as they are: a session keeps the tools that it
began with. After `tools/list_changed`, and after a reconnect where that is asked for, a server is listed once
in the background; what differs goes into the log, a counter and the fleet view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.jsjson import JsonValue
from services.common.logs import get_logger
from services.mcp_pool.connection import ListingTooLarge, TellsToolsChanged, list_tools
from services.mcp_pool.entries import Entry
from services.mcp_pool.failures import McpFailure
from services.mcp_pool.limits import NAMING_OFF_LOOP_TOOLS, Limits
from services.mcp_pool.tool_pins import Difference, Pins, differences, pins_of_listing, pins_of_records

MAX_LINES: Final = 20
"""Log lines of one look at a server; a last one says how many more there are."""

Background = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(slots=True)
class Watched:
    """What is known of the tools behind one connection. `snapshot` tells snapshots apart."""

    pins: Pins
    snapshot: object
    told: frozenset[Difference] = frozenset()
    looking: bool = False
    again: bool = False


@dataclass(slots=True)
class ToolsChanged:
    """For the fleet view: how many differences were found, and the last one."""

    count: int = 0
    last: str = ""
    listener: Callable[[int], None] | None = None
    """Hears how many were found, each time."""


@dataclass(slots=True)
class ToolsWatch:
    """All connections' tools. `background` runs work that nobody waits for."""

    limits: Limits
    background: Background
    changed: ToolsChanged = field(default_factory=ToolsChanged)

    def pin_listing(self, entry: Entry, tools: Sequence[dict[str, Any]]) -> None:
        """The session's snapshot was made of these tools."""
        self.background(self._pin(entry, None, lambda: pins_of_listing(entry.key.name, tools), len(tools)))

    def pin_snapshot(
        self, entry: Entry, snapshot: object, records: Sequence[dict[str, JsonValue]], look: bool
    ) -> None:
        """The session's snapshot has these records of the server. With `look` it is listed at once."""
        if entry.watched is not None and entry.watched.snapshot == snapshot and not look:
            return
        self.background(self._pin(entry, snapshot, lambda: pins_of_records(records), len(records), look))

    async def _pin(
        self, entry: Entry, snapshot: object, make: Callable[[], Pins], tools: int, look: bool = False
    ) -> None:
        pins = await _made(make, tools)
        known = entry.watched
        if known is None:
            entry.watched = Watched(pins, snapshot)
            if isinstance(entry.connection, TellsToolsChanged):
                entry.connection.on_tools_changed(lambda: self.look(entry))
        elif snapshot is not None:
            # What the listing knows beside the snapshot was left out of it: no news.
            known.pins, known.snapshot = known.pins | pins, snapshot
        if look:
            self.look(entry)

    def look(self, entry: Entry) -> None:
        """Lists once in the background; asked for meanwhile, once more after a pause."""
        watched = entry.watched
        if watched is None:
            return
        if watched.looking:
            watched.again = True
            return
        watched.looking = True
        self.background(self._look(entry, watched))

    async def _look(self, entry: Entry, watched: Watched) -> None:
        try:
            while entry.lendable:
                watched.again = False
                await self._compare(entry, watched)
                # A server that floods notifications is not listed without end.
                await asyncio.sleep(self.limits.look_pause)
                if not watched.again:
                    return
        finally:
            watched.looking = False

    async def _compare(self, entry: Entry, watched: Watched) -> None:
        try:
            async with asyncio.timeout(self.limits.server):
                listing = await list_tools(entry.connection)
        except (McpFailure, ListingTooLarge, TimeoutError) as error:
            get_logger().debug("mcp_tools_not_listed", failure=type(error).__name__)
            return
        now = await _made(lambda: pins_of_listing(entry.key.name, listing.tools), len(listing.tools))
        found = differences(watched.pins, now)
        self._tell(entry, [difference for difference in found if difference not in watched.told])
        watched.told = frozenset(found)

    def _tell(self, entry: Entry, news: Sequence[Difference]) -> None:
        if not news:
            return
        server = entry.key.name.server_name
        self.changed.count += len(news)
        self.changed.last = f"{server} {news[-1].tool} ({news[-1].member})"
        if self.changed.listener is not None:
            self.changed.listener(len(news))
        for difference in news[:MAX_LINES]:
            get_logger().warning(
                "mcp_tools_changed",
                sessionId=entry.key.session_id,
                server=server,
                tool=difference.tool,
                member=difference.member,
            )
        if len(news) > MAX_LINES:
            get_logger().warning(
                "mcp_tools_changed",
                sessionId=entry.key.session_id,
                server=server,
                more=len(news) - MAX_LINES,
            )


async def _made(make: Callable[[], Pins], tools: int) -> Pins:
    return await asyncio.to_thread(make) if tools > NAMING_OFF_LOOP_TOOLS else make()
