"""Keeps a run's lease and takes renewed tokens (harness-api 5.2)."""

from __future__ import annotations

import asyncio

from msgspec import UNSET

from gateway.connection import CallEnd, Connection
from gateway.engine.contract import Abort, AbortKind
from gateway.executors.contract import AbortSignal
from gateway.runs.host import RunHost
from protocol.errors import HarnessApiError
from protocol.methods import Grant, NotRenewed, Renewed
from services.common.logs import get_logger


class Renewal:
    """Asks every `every_s` from the start, whether or not the last time was answered."""

    def __init__(
        self, host: RunHost, connection: Connection, grant: Grant, *, signal: AbortSignal, every_s: float
    ) -> None:
        self._host = host
        self._connection = connection
        self._signal = signal
        self._run_id = grant.run_id
        self._session_id = grant.session_id
        self._epoch = grant.epoch
        self._token = _text(grant.token)
        self._every_s = every_s
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        host.tokens.grant(grant.session_id, grant.epoch, self._token, _text(grant.token_expires_at))
        self._next_at = self._loop.time() + every_s
        self._timer = self._loop.call_at(self._next_at, self._tick)

    def stop(self) -> None:
        """No more renewals; an answer that is still out changes nothing."""
        self._stopped = True
        self._timer.cancel()

    def _tick(self) -> None:
        if self._signal.abort is not None:
            return
        self._next_at += self._every_s
        self._timer = self._loop.call_at(self._next_at, self._tick)
        try:
            self._connection.call("lease.renew", {"runId": self._run_id}, self._answered, plain=True)
        except HarnessApiError as error:
            self._warn(error)

    def _answered(self, end: CallEnd) -> None:
        if self._stopped or self._connection.closed:
            return
        if isinstance(end, HarnessApiError):
            self._warn(end)
        elif isinstance(end.result, NotRenewed):
            self._signal.set(Abort(AbortKind.OWNERSHIP_LOST, "Ownership lost"))
        else:
            self._renewed(end.result)

    def _renewed(self, renewed: Renewed) -> None:
        token = _text(renewed.token)
        if not token or token == self._token:
            return
        self._token = token
        expires_at = _text(renewed.token_expires_at)
        self._host.tokens.grant(self._session_id, self._epoch, token, expires_at)
        self._host.tasks.start(
            self._host.executors.mcp.put_grant(self._session_id, self._epoch, token, expires_at)
        )

    def _warn(self, error: HarnessApiError) -> None:
        get_logger().warning("harness lease renewal failed", runId=self._run_id, error=error.message)


def _text(value: object) -> str | None:
    return value if value is not UNSET and isinstance(value, str) else None
