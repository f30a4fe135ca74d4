"""The gRPC face of the sandbox manager: it checks, forwards, and decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from whippletree.v1 import admin_pb2, common_pb2, sandbox_manager_pb2, sandbox_manager_pb2_grpc

from protocol.jsjson import dumps
from services.common.calls import WorkKey
from services.common.effect_run import EffectAborted, EffectRaised, EffectRun
from services.common.effect_stream import EffectStreams, Prepared, Replies, StreamTimings
from services.common.errors import Refused, invalid, unavailable
from services.common.late import Late
from services.common.logs import get_logger
from services.common.work import WorkBook
from services.sandbox_manager.contract import BackendError
from services.sandbox_manager.events import SandboxEvent
from services.sandbox_manager.keys import is_workspace_key
from services.sandbox_manager.manager import Manager
from services.sandbox_manager.messages import (
    Reply,
    abort_kind,
    abort_name,
    check_operation,
    check_tenant,
    document,
    event_reply,
    file_replies,
    fingerprint,
    found_reply,
    late_input,
    outcome_reply,
    record_message,
    session_of,
    work_key,
)
from services.sandbox_manager.operations import BytesRead, Call, ManagerClosing, OperationAborted
from services.sandbox_manager.root import OtherTenant, Root
from services.sandbox_manager.signals import Signal
from services.sandbox_manager.sweep_stream import SweepStream

ACK_LIMIT_S: Final = 30.0
"""How long one event may wait for its answer; then it counts as dropped, as without a connection."""
EVENTS_OF_A_CALL: Final = 3
"""Creating, running, exec: what an operation may wait for besides its own work."""

_REPLIES: Final = Replies(
    queued=lambda queued: Reply(queued=queued),
    accepted=lambda accepted: Reply(accepted=accepted),
    aborted=lambda aborted: Reply(aborted=aborted),
    raised=lambda raised: Reply(raised=raised),
)


class SandboxManagerService(sandbox_manager_pb2_grpc.SandboxManagerServicer):
    """`whippletree.v1.SandboxManager` over one root. The manager is made by the first request."""

    full_name = "whippletree.v1.SandboxManager"
    service = "sandbox-manager"

    def __init__(
        self,
        root: Root,
        make_manager: Callable[[str, str], Manager],
        driver: str = "",
        timings: StreamTimings | None = None,
        close_unused: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`make_manager` gets the tenant and core's backend preference; `close_unused` ends what it would use."""
        self._root = root
        self._make_manager = make_manager
        self._driver = driver
        self._close_unused = close_unused
        self._made: Manager | None = None
        self._work = WorkBook()
        self._runs: EffectStreams[Reply] = EffectStreams(_REPLIES, self._work, timings=timings)
        self._sweeps = SweepStream(ACK_LIMIT_S)
        self._draining = False

    @property
    def work(self) -> WorkBook:
        """Everything in flight."""
        return self._work

    def register(self, server: grpc.aio.Server) -> None:
        """Adds its handlers."""
        sandbox_manager_pb2_grpc.add_SandboxManagerServicer_to_server(self, server)

    def facts(self) -> Mapping[str, str]:
        """The driver that was asked for."""
        return {"driver": self._driver}

    def in_flight(self) -> Sequence[admin_pb2.CallInFlight]:
        """Work in flight."""
        return self._work.in_flight()

    async def stop_taking(self) -> None:
        """Refuses new work."""
        self._draining = True
        self._runs.stop_taking()

    async def close(self) -> None:
        """Kills what runs, stops every workspace and writes their records."""
        await self._runs.close()
        if self._made is not None:
            await self._made.close()
        elif self._close_unused is not None:
            await self._close_unused()

    async def Run(self, request: Any, context: Any) -> None:  # type: ignore[override]
        """Runs one operation in a workspace."""
        await self._runs.serve(context, self._prepare)

    async def Sweep(self, request: Any, context: Any) -> None:  # type: ignore[override]
        """Stops idle workspaces and lists all records."""
        self._refuse_when_draining()
        begin = await self._sweeps.read_begin(context)
        manager = await self._manager(begin.tenant)
        work = self._work.begin("sweep", "", phase="running")
        try:
            async with self._sweeps.events(context) as emit:
                await manager.stop_idle(begin.now_ms if begin.HasField("now_ms") else None, emit)
            records = [record_message(record) for record in manager.records()]
        except BackendError as error:
            raise Refused(grpc.StatusCode.INTERNAL, str(error)) from None
        finally:
            work.end()
        listed = sandbox_manager_pb2.WorkspaceRecords(records=records)
        await context.write(sandbox_manager_pb2.SweepReply(records=listed))

    async def Report(
        self, request: sandbox_manager_pb2.ReportRequest, context: Any
    ) -> sandbox_manager_pb2.ReportReply:
        """Says which backend is used and why."""
        manager = await self._manager(request.tenant)
        report = await manager.report()
        return sandbox_manager_pb2.ReportReply(report=common_pb2.Json(text=dumps(report)))

    async def Remove(
        self, request: sandbox_manager_pb2.RemoveRequest, context: Any
    ) -> sandbox_manager_pb2.RemoveReply:
        """Deletes workspaces."""
        self._refuse_when_draining()
        manager = await self._manager(request.tenant)
        work = self._work.begin("remove", "", phase="running")
        try:
            if request.all:
                await manager.remove_all()
            for key in request.keys:
                if not is_workspace_key(request.tenant.tenant_id, key):
                    return sandbox_manager_pb2.RemoveReply(invalid_key=key)
                await manager.remove(key)
            for sandbox_id in request.sandbox_ids:
                await manager.remove_sandbox(sandbox_id)
        except BackendError as error:
            raise Refused(grpc.StatusCode.INTERNAL, str(error)) from None
        finally:
            work.end()
        return sandbox_manager_pb2.RemoveReply()

    async def Cancel(self, request: common_pb2.CancelRequest, context: Any) -> common_pb2.CancelReply:
        """Stops an effect by its id."""
        effect = request.effect
        if not effect.session_id or not effect.effect_id:
            raise invalid("effect.session_id and effect.effect_id are needed.")
        key = WorkKey(effect.tenant_id, effect.session_id, effect.effect_id)
        return common_pb2.CancelReply(state=self._runs.cancel(key, request.kind))

    # Inside

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise unavailable("This sandbox-manager is draining.")

    async def _manager(self, tenant: sandbox_manager_pb2.TenantRef) -> Manager:
        check_tenant(tenant)
        try:
            await self._root.fix_tenant(tenant.tenant_id)
        except OtherTenant as error:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error), not_started=True) from None
        except OSError as error:
            raise unavailable(f"The root can't be written: {error.strerror}.") from None
        if self._made is None:
            self._made = self._make_manager(tenant.tenant_id, tenant.preference)
        return self._made

    def _prepare(self, operation: sandbox_manager_pb2.WorkspaceOperation) -> Prepared[Reply]:
        check_operation(operation)
        spec = document("spec", operation.spec)
        input_ = late_input(operation)
        alike = fingerprint(operation)
        late = [one for one in (input_, alike) if isinstance(one, Late)]
        key = work_key(operation)
        effect = operation.effect

        async def perform(run: EffectRun[Reply]) -> Reply | None:
            manager = await self._manager(operation.tenant)
            call = _call(operation, spec, run, late)
            try:
                match operation.WhichOneof("operation"):
                    case "tool":
                        return outcome_reply(await manager.run(call, operation.tool.tool, input_))
                    case "list_files":
                        wanted = operation.list_files
                        return found_reply(await manager.list_files(call, wanted.dir, wanted.max_entries))
                    case _:
                        file = operation.read_bytes
                        found = await manager.read_bytes(call, file.path, file.max_bytes)
                        if not isinstance(found, BytesRead):
                            return found_reply(found)
                        await _send_file(run, found)
                        return None
            except OperationAborted as error:
                raise EffectAborted(abort_kind(error.kind)) from None
            except ManagerClosing as error:
                raise unavailable(str(error)) from None
            except BackendError as error:
                raise EffectRaised(str(error)) from error

        return Prepared(
            kind="sandbox",
            session_id=effect.session_id if key is not None else operation.workspace.owner_id,
            key=key,
            fingerprint=alike,
            perform=perform,
            epoch=effect.epoch if key is not None else None,
        )


async def _send_file(run: EffectRun[Reply], file: BytesRead) -> None:
    for reply in file_replies(file):
        if not await run.send(reply):
            return


def _call(
    operation: sandbox_manager_pb2.WorkspaceOperation,
    spec: Any,
    run: EffectRun[Reply],
    late: Sequence[Late[Any]],
) -> Call:
    """The manager's view of one run: its abort, its events, its place in the queue, its start."""
    signal = Signal()
    sent = 0

    def aborted(kind: int) -> None:
        signal.set(abort_name(kind))

    run.abort.listen(aborted)

    async def emit(event: SandboxEvent) -> None:
        nonlocal sent
        sent += 1
        try:
            await run.event(event_reply(sent, event), sent, ACK_LIMIT_S)
        except TimeoutError:
            get_logger().warning(
                "sandbox_event_not_answered", sessionId=event.session_id, type=event.type, seconds=ACK_LIMIT_S
            )

    async def begin(limit_ms: float) -> None:
        limit = int(limit_ms + EVENTS_OF_A_CALL * ACK_LIMIT_S * 1000)
        await run.accept(limit, make_late if late else None)

    def make_late() -> None:
        for one in late:
            one.value  # noqa: B018  (made now, and kept)

    return Call(
        session=session_of(operation.workspace),
        spec=spec,
        signal=signal,
        emit=emit,
        waiting=run.queued,
        begin=begin,
    )
