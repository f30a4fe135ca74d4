"""Everything that belongs to one connection: hello, leasing, live runs, workspace requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.connection import CallEnd, Connection, Reply
from gateway.engine.contract import AbortKind
from gateway.gate import ServicesGate
from gateway.harness_api.closing import RECONNECTING, STOPPED
from gateway.harness_api.events import MessageArrived, RequestArrived
from gateway.runs.host import Identity, RunHost
from gateway.runs.leasing import Leasing
from gateway.runs.live import LiveRuns
from gateway.runs.run import abort_of
from gateway.workspaces import WorkspaceRequests
from protocol.closing import NORMAL
from protocol.errors import HarnessApiError
from protocol.jsjson import JsonValue
from protocol.methods import API_VERSION, HelloResult

_CLOSED = "The Harness API connection closed"


@dataclass(frozen=True, slots=True)
class Introduction:
    """How `hello` introduces us. `backends` None: no workspace capability."""

    name: str
    version: str
    backends: tuple[str, ...] | None

    def params(self) -> JsonValue:
        """The params of `hello`."""
        workspace = {} if self.backends is None else {"workspace": {"backends": list(self.backends)}}
        return {"api": API_VERSION, "name": self.name, "version": self.version, "capabilities": workspace}


class Attachment:
    """Handles one connection from its hello to its end."""

    def __init__(
        self, host: RunHost, connection: Connection, gate: ServicesGate, greeted: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.greeted = False
        self.refused: HarnessApiError | None = None
        """Why `hello` failed."""
        self._host = host
        self._gate = gate
        self._on_greeted = greeted
        self._renew_every_s = host.timing.assumed_renewal
        self._stopping = False
        self._runs = LiveRuns(host, connection, self._run_ended)
        self._leasing = Leasing(connection, host.timing, self._granted, self._has_room)
        self._workspaces = WorkspaceRequests(
            connection, host.executors.workspaces, lambda: host.identity, host.tasks
        )
        connection.handler = self

    @property
    def connected(self) -> bool:
        """Hello was answered and the connection is open."""
        return self.greeted and not self.connection.closed

    def greet(self, introduction: Introduction) -> None:
        """Says hello; a refusal closes the connection."""
        self.connection.call("hello", introduction.params(), self._hello_ended)

    def gate_changed(self) -> None:
        """The services came or went."""
        if not self.connected:
            return
        if self._gate.is_open:
            self._leasing.resume()
        else:
            self._leasing.pause()

    async def stop(self, limit_s: float) -> None:
        """Gives the runs back, waits for them at most `limit_s`, and closes."""
        self._stopping = True
        self._leasing.stop()
        self._runs.abort_all(abort_of(AbortKind.SHUTDOWN))
        await self._runs.ended(limit_s)
        self.connection.close(NORMAL, STOPPED)

    async def wind_down(self) -> None:
        """After the connection is lost: lets the runs end; one that ignores its abort is left behind."""
        await self._runs.ended(self._host.timing.wind_down)

    def stop_leasing(self) -> None:
        """Takes no more work; runs that are held go on."""
        self._leasing.stop()

    @property
    def held(self) -> int:
        """How many runs are held."""
        return len(self._runs)

    def facts(self) -> list[dict[str, Any]]:
        """What may be shown of the held runs."""
        return self._runs.facts()

    # The connection's handler

    def request_arrived(self, request: RequestArrived) -> None:
        """Core asks for something of a workspace."""
        self._workspaces.arrived(request)

    def request_given_up(self, request_id: int, error: HarnessApiError) -> None:
        """Core no longer wants the answer."""
        self._workspaces.given_up(request_id, error)

    def message_arrived(self, message: MessageArrived) -> None:
        """A cancel or an outcome."""
        self._runs.message(message)

    def connection_closed(self) -> None:
        """Runs of a lost connection are given back, as far as anybody can."""
        self._leasing.stop()
        self._runs.abort_all(abort_of(AbortKind.SHUTDOWN, _CLOSED))

    # Moving on

    def _hello_ended(self, end: CallEnd) -> None:
        if isinstance(end, HarnessApiError):
            if not self.connection.closed:
                self.refused = end
                self.connection.close(NORMAL, RECONNECTING)
            return
        hello: HelloResult = end.result
        self._renew_every_s = hello.renew_every_ms / 1000.0
        if self._host.identity is None:
            self._host.identity = Identity(hello.tenant_id, hello.sandbox.backend or "auto")
        self.greeted = True
        self._on_greeted()
        self.gate_changed()

    def _granted(self, lease: Reply) -> None:
        identity = self._host.identity
        assert identity is not None
        self._runs.start(lease, identity, self._renew_every_s)

    def _has_room(self) -> bool:
        limit = self._host.max_runs
        return limit is None or len(self._runs) < limit

    def _run_ended(self) -> None:
        self._leasing.ask()
