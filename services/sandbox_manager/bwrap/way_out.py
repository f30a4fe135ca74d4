"""What a sandbox with allowed hosts has around its command: a listening socket inside, the proxy outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.sandbox_manager.bwrap.listening import Listeners
from services.sandbox_manager.disk.identity import Identity
from services.sandbox_manager.egress.dialer import Dialer
from services.sandbox_manager.egress.hosts import HostRules
from services.sandbox_manager.egress.proxy import EgressProxy, Slots


class WaysOut:
    """Of all sandboxes of a driver."""

    def __init__(self, identity: Identity | None, dialer: Dialer) -> None:
        self._listeners = Listeners(identity)
        self._dialer = dialer
        self._slots: Slots | None = None

    @asynccontextmanager
    async def open(self, rules: HostRules, processes: Sequence[int]) -> AsyncIterator[None]:
        """A proxy for the sandbox whose first process is the last of `processes`. Raises BackendError."""
        if self._slots is None:
            self._slots = Slots()
        with await self._listeners.listen(processes[-1]) as listener:
            proxy = asyncio.create_task(EgressProxy(rules, self._dialer, self._slots).serve(listener))
            try:
                yield
            finally:
                proxy.cancel()
                await asyncio.wait([proxy])

    def close(self) -> None:
        """Ends what makes the sockets."""
        self._listeners.close()
