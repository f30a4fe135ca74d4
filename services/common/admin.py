"""The Admin service beside every service: Describe, Stats, Drain."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

from whippletree.v1 import admin_pb2, admin_pb2_grpc

import services.common.grpc_env  # noqa: F401  (before grpc)
from services.common.served import HasFacts, HasInstance, HasWork, ServedService
from services.common.version import API_MAJOR, version

DRAIN_PERIOD_S: Final = 1.0
FULL_NAME: Final = "whippletree.v1.Admin"


class Drainer:
    """The process's draining: entered once, by a signal or by Admin.Drain."""

    def __init__(self, service: ServedService) -> None:
        self._service = service
        self._entered = False
        self.on_enter: list[Any] = []

    @property
    def draining(self) -> bool:
        """New effects are refused."""
        return self._entered

    async def enter(self, delay_s: float = 0.0) -> None:
        """Says NOT_SERVING, waits for callers to notice, then stops taking. A second time does nothing."""
        if self._entered:
            return
        self._entered = True
        for callback in self.on_enter:
            await callback()
        if delay_s:
            await asyncio.sleep(delay_s)
        await self._service.stop_taking()


class AdminServicer(admin_pb2_grpc.AdminServicer):
    """Answers for one process."""

    def __init__(self, service: ServedService, drainer: Drainer) -> None:
        self._service = service
        self._drainer = drainer
        self.instance = service.instance if isinstance(service, HasInstance) else secrets.token_hex(8)
        self._since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"

    async def Describe(self, request: admin_pb2.DescribeRequest, context: Any) -> admin_pb2.DescribeReply:
        """What this process is."""
        return admin_pb2.DescribeReply(
            service=self._service.service,
            version=version(),
            instance=self.instance,
            since=self._since,
            api_major=API_MAJOR,
            facts=dict(self._service.facts()) if isinstance(self._service, HasFacts) else {},
        )

    async def Stats(self, request: admin_pb2.StatsRequest, context: Any) -> admin_pb2.StatsReply:
        """What it does."""
        book = self._service.work if isinstance(self._service, HasWork) else None
        return admin_pb2.StatsReply(
            in_flight=self._service.in_flight(),
            counts=book.counts if book is not None else {},
            latencies=book.latencies() if book is not None else [],
            draining=self._drainer.draining,
        )

    async def Drain(
        self, request: admin_pb2.DrainRequest, context: Any
    ) -> AsyncIterator[admin_pb2.DrainReply]:
        """Stops taking and says what runs until nothing does."""
        await self._drainer.enter()
        while True:
            running = self._service.in_flight()
            yield admin_pb2.DrainReply(in_flight=running)
            if not running:
                return
            await asyncio.sleep(DRAIN_PERIOD_S)
