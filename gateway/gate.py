"""Takes work only while the three services can do it (operations 12.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.fleet import ServicesHealth
from gateway.timing import Timing
from services.common.logs import get_logger


class ServicesGate:
    """Open once all services are serving; shut again when one has been gone for the grace time."""

    def __init__(self, services: ServicesHealth, timing: Timing) -> None:
        self._services = services
        self._timing = timing
        self._opened = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None
        """Called at once when it opens or shuts."""

    @property
    def is_open(self) -> bool:
        """Work may be asked for."""
        return self._opened.is_set()

    async def wait_open(self) -> None:
        """Waits until work may be asked for."""
        await self._opened.wait()

    async def run(self) -> None:
        """Follows the services until cancelled."""
        while True:
            await self._all_serving()
            self._opened.set()
            self.changed()
            await self._gone_for_good()
            self._opened.clear()
            self.changed()

    async def _all_serving(self) -> None:
        while not self._services.ready():
            get_logger().info("harness_waiting_for_services", missing=list(self._services.missing()))
            await self._within(self._timing.services_log, ready=True)

    async def _gone_for_good(self) -> None:
        while True:
            await self._services.wait(False)
            if not await self._within(self._timing.services_grace, ready=True):
                return

    async def _within(self, seconds: float, *, ready: bool) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._services.wait(ready)
        except TimeoutError:
            return False
        return True
