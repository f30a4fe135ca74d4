"""Keeps the gateway connected to core: dials, serves, and dials again (harness-api 1.5, 5.5)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.attachment import Attachment, Introduction
from gateway.backoff import Backoff
from gateway.connection import Connection
from gateway.fleet import ServicesHealth
from gateway.gate import ServicesGate
from gateway.harness_api.closing import STOPPED
from gateway.runs.host import RunHost
from gateway.settings import without_userinfo
from gateway.websocket import Dialer, DialFailed
from protocol.closing import NORMAL
from services.common import metrics
from services.common.logs import error_text, get_logger

Credentials = Callable[[], Awaitable[str]]
"""Gives the bearer for the next dial. Raises DialFailed."""


class Link:
    """One connection at a time, for as long as the process lives.

    `on_connected` is called whenever `hello` was answered. `chance` is the backoff's.
    """

    def __init__(
        self,
        url: str,
        host: RunHost,
        *,
        credentials: Credentials,
        dial: Dialer,
        services: ServicesHealth,
        introduction: Introduction,
        on_connected: Callable[[], None] = lambda: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._url = without_userinfo(url)
        self._credentials = credentials
        self._dial = dial
        self._host = host
        self._introduction = introduction
        self._on_connected = on_connected
        self._gate = ServicesGate(services, host.timing)
        self._gate.changed = self._gate_changed
        self._backoff = Backoff(host.timing.backoff_min, host.timing.backoff_max, chance)
        self._stopping = asyncio.Event()
        self._leasing_stopped = False
        self._attachment: Attachment | None = None
        self._problem = "The core has not answered yet."

    @property
    def connected(self) -> bool:
        """A connection is open and its hello was answered."""
        return self._attachment is not None and self._attachment.connected

    @property
    def held(self) -> int:
        """How many runs are held."""
        attachment = self._attachment
        return 0 if attachment is None else attachment.held

    @property
    def problem(self) -> str | None:
        """Why there is no connection; None while there is one."""
        if self.connected:
            return None
        if not self._gate.is_open:
            return "The core is dialled once all services serve."
        return self._problem

    @property
    def draining(self) -> bool:
        """`stop_leasing` was called, or the stop began."""
        return self._leasing_stopped or self._stopping.is_set()

    def facts(self) -> list[dict[str, Any]]:
        """What may be shown of the held runs."""
        return [] if self._attachment is None else self._attachment.facts()

    def stop_leasing(self) -> None:
        """Takes no more work, on this connection or a later one; held runs go on."""
        self._leasing_stopped = True
        if self._attachment is not None:
            self._attachment.stop_leasing()

    async def run(self) -> None:
        """Serves until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            gate = tasks.create_task(self._gate.run())
            try:
                while await self._unless_stopping(self._gate.wait_open()):
                    await self._attempt()
            finally:
                gate.cancel()

    async def stop(self, limit_s: float) -> None:
        """Gives the runs back (at most `limit_s`) and closes; `run` then returns."""
        self._stopping.set()
        if self._attachment is not None:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await self._attachment.stop(limit_s)
            metrics.current.record("nylorun.harness.give_back.duration", loop.time() - began)

    async def _attempt(self) -> None:
        """One connection, from the dial to the end of the wait after it."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            reason = await self._serve_once()
        except DialFailed as failed:
            self._problem = str(failed)
            _count_reconnect("refused")
            get_logger().warning("harness_connect_failed", url=self._url, error=str(failed))
        except Exception as error:  # noqa: BLE001  (a fault of ours must not end the process's only loop)
            self._problem = "A fault of the gateway; its log says more."
            _count_reconnect("fault")
            get_logger().error("harness_connect_failed", url=self._url, error=error_text(error))
        else:
            self._problem = f"The connection was lost: {reason}"
            if not self._stopping.is_set():
                _count_reconnect("lost")
                get_logger().warning("harness_connection_lost", reason=reason)
        if not self._stopping.is_set():
            wait_s = self._backoff.next_wait_s(loop.time() - started)
            await self._unless_stopping(asyncio.sleep(wait_s))

    async def _serve_once(self) -> str:
        """Why the connection ended. Raises DialFailed when hello was never answered."""
        socket = await self._dial(self._url, await self._credentials())
        connection = Connection(socket, self._host.timing)
        attachment = Attachment(self._host, connection, self._gate, self._greeted)
        if self._leasing_stopped:
            attachment.stop_leasing()
        self._attachment = attachment
        try:
            if self._stopping.is_set():
                connection.close(NORMAL, STOPPED)
            else:
                attachment.greet(self._introduction)
            reason = await connection.run()
            if self._stopping.is_set():
                return reason
            if not attachment.greeted:
                raise DialFailed(_why_no_hello(attachment, reason))
            await attachment.wind_down()
        finally:
            self._attachment = None
        return reason

    def _greeted(self) -> None:
        get_logger().info("harness_connected", url=self._url)
        self._on_connected()

    def _gate_changed(self) -> None:
        if self._attachment is not None:
            self._attachment.gate_changed()

    async def _unless_stopping(self, wait: Awaitable[Any]) -> bool:
        """Waits for something, or for the stop; False when it is the stop."""
        waiting = asyncio.ensure_future(wait)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            stopping.cancel()
        return not self._stopping.is_set()


def _count_reconnect(reason: str) -> None:
    metrics.current.record("nylorun.harness.reconnects", 1, {"nylorun.reason": reason})


def _why_no_hello(attachment: Attachment, reason: str) -> str:
    if attachment.refused is None:
        return f"the connection closed before hello was answered: {reason}"
    return f"hello failed: {attachment.refused.message}"
