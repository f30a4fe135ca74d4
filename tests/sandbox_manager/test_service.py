"""The gRPC face over a backend that does what it is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
import pytest
from whippletree.v1 import common_pb2, sandbox_manager_pb2

from services.common.effect_stream import StreamTimings
from services.sandbox_manager import service as service_module
from services.sandbox_manager.keys import session_key
from services.sandbox_manager.messages import LATE_BYTES
from tests.sandbox_manager.support import (
    BOUND,
    START,
    TENANT,
    Port,
    Rig,
    abort,
    ack,
    converse,
    fake_port,
    outcome_of,
    read,
    request,
)

KEY = session_key(TENANT, "s1")
TENANT_REF = sandbox_manager_pb2.TenantRef(tenant_id=TENANT)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    async with fake_port(tmp_path) as made:
        yield made


@pytest.fixture
def rig(port: Port) -> Rig:
    assert port.rig is not None
    return port.rig


def _tool(name: str, **input_: Any) -> sandbox_manager_pb2.ToolOperation:
    return sandbox_manager_pb2.ToolOperation(tool=name, input=common_pb2.Json(text=json.dumps(input_)))


async def _status(stream: Any) -> grpc.StatusCode:
    async with asyncio.timeout(BOUND):
        code: grpc.StatusCode = await stream.code()
    return code


async def _not_started(stream: Any) -> bool:
    return dict(await stream.trailing_metadata()).get("x-whippletree-not-started") == "1"


# The conversation


@pytest.mark.spec("sandbox-manager:19.2")
async def test_events_are_answered_before_the_outcome(port: Port) -> None:
    stream = port.run()
    await stream.write(request(bash="true"))
    metadata = dict(await stream.initial_metadata())
    assert metadata["x-whippletree-accepted"] == "1"
    assert int(metadata["x-whippletree-limit-ms"]) == 120_000 + 120_000 + 3 * 30_000
    await stream.write(START)
    for seq, state in ((1, "creating"), (2, "running")):
        reply = await read(stream)
        assert (reply.event.seq, json.loads(reply.event.payload.text)["state"]) == (seq, state)
        assert reply.event.record.key == KEY
        assert reply.event.record.state == state
        assert not reply.event.record.HasField("sandbox_id")
        if state == "creating":
            assert port.rig is not None
            assert port.rig.backend.said == []  # opening waits for the answer
        await stream.write(ack(seq))
    last = await read(stream)
    assert (last.event.type, last.event.HasField("record")) == ("sandbox.exec", False)
    waiting = asyncio.create_task(read(stream))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await stream.write(ack(3))
    assert outcome_of(await waiting)["output"]["exitCode"] == 0
    assert await read(stream) is grpc.aio.EOF
    assert await _status(stream) is grpc.StatusCode.OK


async def test_nothing_is_done_before_start(port: Port, rig: Rig) -> None:
    stream = port.run()
    await stream.write(request(bash="true"))
    await stream.initial_metadata()
    stream.cancel()
    await asyncio.sleep(0.05)
    assert rig.backend.said == []
    _, end = await converse(port.run(), request(bash="true"))
    assert outcome_of(end)["kind"] == "completed"
    assert rig.backend.said.count("exec true") == 1


async def test_a_busy_workspace_queues_and_says_the_place(tmp_path: Path) -> None:
    async with fake_port(tmp_path, timings=StreamTimings(first_word_s=0.05, heartbeat_s=0.05)) as port:
        assert port.rig is not None
        gate = port.rig.backend.gate("wait")
        first = asyncio.create_task(converse(port.run(), request(effect="a", bash="wait")))
        await gate.entered.wait()
        stream = port.run()
        await stream.write(request(effect="b", bash="late"))
        assert "x-whippletree-accepted" not in dict(await stream.initial_metadata())
        for _ in range(3):
            assert (await read(stream)).queued.position == 1
        gate.open.set()
        reply = await read(stream)
        while reply.WhichOneof("message") == "queued":
            reply = await read(stream)
        assert reply.accepted.limit_ms > 120_000
        await stream.write(START)
        assert (await read(stream)).WhichOneof("message") == "event"
        await first
        stream.cancel()


@pytest.mark.spec("sandbox-manager:19.17")
async def test_an_abort_in_band_still_gives_the_outcome_and_its_event(port: Port, rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    stream = port.run()
    running = asyncio.create_task(converse(stream, request(bash="wait")))
    await gate.entered.wait()
    await stream.write(abort())
    events, end = await running
    assert outcome_of(end)["output"] == {"exitCode": 130, "stdout": "part", "stderr": ""}
    assert json.loads(events[-1].payload.text)["killed"] is True


@pytest.mark.spec("sandbox-manager:19.9")
async def test_an_abort_in_the_queue_leaves_the_running_one_alone(port: Port, rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    first = asyncio.create_task(converse(port.run(), request(effect="a", bash="wait")))
    await gate.entered.wait()
    second = port.run()
    await second.write(request(effect="b", bash="late"))
    assert (await read(second)).queued.position == 1
    await second.write(abort())
    assert (await read(second)).aborted.kind == common_pb2.ABORT_KIND_CANCEL
    gate.open.set()
    _, end = await first
    assert outcome_of(end)["output"]["exitCode"] == 0
    assert "exec late" not in rig.backend.said


async def test_a_lost_stream_kills_the_command_and_drops_its_events(port: Port, rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    stream = port.run()
    running = asyncio.create_task(converse(stream, request(bash="wait")))
    await gate.entered.wait()
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(BOUND):
        while "end wait" not in rig.backend.said:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    events, end = await converse(port.run(), request(bash="wait"))
    assert outcome_of(end)["output"]["exitCode"] == 130
    assert events == []
    assert rig.backend.said.count("exec wait") == 1


async def test_a_second_stream_joins_and_nothing_starts_twice(port: Port, rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    first = asyncio.create_task(converse(port.run(), request(bash="wait")))
    await gate.entered.wait()
    second = asyncio.create_task(converse(port.run(), request(bash="wait")))
    await asyncio.sleep(0.05)
    gate.open.set()
    ends = [end for _, end in await asyncio.gather(first, second)]
    assert outcome_of(ends[0]) == outcome_of(ends[1])
    _, kept = await converse(port.run(), request(bash="wait"))
    assert outcome_of(kept) == outcome_of(ends[0])
    assert rig.backend.said.count("exec wait") == 1


def _long(tool: str, text: str) -> sandbox_manager_pb2.RunRequest:
    """A call whose input is read while `start` is on its way."""
    return request(tool=sandbox_manager_pb2.ToolOperation(tool=tool, input=common_pb2.Json(text=text)))


async def test_a_long_input_makes_a_call_what_it_is(port: Port, rig: Rig) -> None:
    text = json.dumps({"path": "a", "content": "x" * LATE_BYTES})
    _, end = await converse(port.run(), _long("write", text))
    assert outcome_of(end)["kind"] == "completed"
    wrote = list(rig.backend.said)
    _, again = await converse(port.run(), _long("write", text))
    assert (outcome_of(again), rig.backend.said) == (outcome_of(end), wrote)
    other = port.run()
    await other.write(_long("write", text.replace("x", "y", 1)))
    assert await _status(other) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_long_input_that_is_no_document_is_refused_before_anything_is_done(
    port: Port, rig: Rig
) -> None:
    stream = port.run()
    await stream.write(_long("write", '{"path":"a","content":"' + "x" * LATE_BYTES))
    assert await _status(stream) is grpc.StatusCode.INVALID_ARGUMENT
    assert rig.backend.said == []
    _, end = await converse(port.run(), request(bash="true"))
    assert outcome_of(end)["kind"] == "completed"  # the id is free


async def test_one_id_for_two_calls_and_an_older_lease_are_refused(port: Port) -> None:
    await converse(port.run(), request(bash="true", epoch=2))
    other = port.run()
    await other.write(request(bash="false", epoch=2))
    assert await _status(other) is grpc.StatusCode.INVALID_ARGUMENT
    older = port.run()
    await older.write(request(bash="true", epoch=1))
    assert await _status(older) is grpc.StatusCode.FAILED_PRECONDITION


async def test_what_the_backend_throws_is_raised_and_kept(port: Port, rig: Rig) -> None:
    for _ in range(2):
        _, end = await converse(port.run(), request(bash="throw"))
        assert end.raised.message == "the backend broke"
    assert rig.backend.said.count("exec throw") == 1


async def test_cancel_finds_the_effect_in_every_state(port: Port, rig: Rig) -> None:
    gate = rig.backend.gate("wait")
    effect = common_pb2.EffectRef(tenant_id=TENANT, session_id="s1", effect_id="effect-1")

    async def cancel() -> int:
        asked = common_pb2.CancelRequest(effect=effect, kind=common_pb2.ABORT_KIND_CANCEL)
        reply = await port.stub.Cancel(asked, metadata=port.metadata)
        return int(reply.state)

    assert await cancel() == common_pb2.CancelReply.STATE_NOT_HERE
    running = asyncio.create_task(converse(port.run(), request(bash="wait")))
    await gate.entered.wait()
    assert await cancel() == common_pb2.CancelReply.STATE_STOPPING
    _, end = await running
    assert outcome_of(end)["output"]["exitCode"] == 130
    assert await cancel() == common_pb2.CancelReply.STATE_FINISHED


@pytest.mark.spec("sandbox-manager:19.31")
async def test_an_event_that_nobody_answers_costs_a_warning(
    port: Port, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service_module, "ACK_LIMIT_S", 0.05)
    stream = port.run()
    await stream.write(request(bash="true"))
    await stream.initial_metadata()
    await stream.write(START)
    replies = [await read(stream) for _ in range(4)]
    assert outcome_of(replies[3])["kind"] == "completed"
    assert capsys.readouterr().out.count("sandbox_event_not_answered") == 3


# What core asks for


async def test_files_come_in_pieces_with_their_size_first(port: Port, rig: Rig) -> None:
    data = bytes(range(256)) * 10_000
    await converse(port.run(), request(effect=None, tool=_tool("write", path="f", content="x")))
    rig.backend.kept[KEY]["/workspace/f"] = data
    for number in range(2):  # what core asks for is neither joined nor kept
        stream = port.run()
        wanted = sandbox_manager_pb2.ReadBytesOperation(path="./f", max_bytes=len(data))
        await stream.write(request(effect=None, read_bytes=wanted))
        await stream.initial_metadata()
        await stream.write(START)
        header = await read(stream)
        assert (header.file.path, header.file.size) == ("/workspace/f", len(data)), number
        pieces = []
        while (reply := await read(stream)) is not grpc.aio.EOF:
            pieces.append(reply.chunk)
        assert b"".join(pieces) == data
        assert max(map(len, pieces)) <= 1024 * 1024


@pytest.mark.spec("sandbox-manager:19.27")
async def test_files_that_are_missing_empty_or_too_large(port: Port, rig: Rig) -> None:
    async def wanted(path: str, max_bytes: int) -> Any:
        operation = sandbox_manager_pb2.ReadBytesOperation(path=path, max_bytes=max_bytes)
        return (await converse(port.run(), request(effect=None, read_bytes=operation)))[1]

    assert (await wanted("x/../y", 10)).missing.path == "/workspace/y"
    rig.backend.kept[KEY]["/workspace/f"] = b"12345"
    assert outcome_of(await wanted("f", 4))["code"] == "artifact.too_large"
    rig.backend.kept[KEY]["/workspace/f"] = b""
    assert (await wanted("f", 4)).file.size == 0


@pytest.mark.spec("sandbox-manager:19.28")
async def test_listings_and_what_never_was(port: Port, rig: Rig) -> None:
    async def listed(folder: str) -> Any:
        operation = sandbox_manager_pb2.ListFilesOperation(dir=folder, max_entries=5)
        return (await converse(port.run(), request(effect=None, list_files=operation)))[1]

    assert (await listed("./x")).missing.path == "./x"
    assert rig.backend.said == []
    await converse(port.run(), request(bash="true"))
    found = await listed(".")
    assert (found.listing.path, list(found.listing.entries)) == ("/workspace", [])


@pytest.mark.spec("sandbox-manager:19.4")
async def test_a_sweep_tells_its_stops_and_then_the_records(port: Port, rig: Rig) -> None:
    for owner in ("s1", "s2"):
        await converse(port.run(), request(owner=owner, effect=owner, bash="true"))
    begin = sandbox_manager_pb2.SweepBegin(tenant=TENANT_REF, now_ms=rig.clock.ms + 900_000)
    stream = port.stub.Sweep(metadata=port.metadata)
    await stream.write(sandbox_manager_pb2.SweepRequest(begin=begin))
    events = [(await read(stream)).event for _ in range(2)]
    for event in events:
        assert not event.HasField("turn_id")
        assert event.record.state == "stopped"
        answer = sandbox_manager_pb2.EventAck(seq=event.seq)
        await stream.write(sandbox_manager_pb2.SweepRequest(ack=answer))
    end = await read(stream)
    assert [(record.session_id, record.state) for record in end.records.records] == [
        ("s1", "stopped"), ("s2", "stopped"),
    ]  # fmt: skip
    assert {event.seq for event in events} == {1, 2}


async def test_a_sweep_whose_caller_says_no_more_still_ends(port: Port, rig: Rig) -> None:
    await converse(port.run(), request(bash="true"))
    begin = sandbox_manager_pb2.SweepBegin(tenant=TENANT_REF, now_ms=rig.clock.ms + 900_000)
    stream = port.stub.Sweep(metadata=port.metadata)
    await stream.write(sandbox_manager_pb2.SweepRequest(begin=begin))
    await stream.done_writing()
    replies = []
    while (reply := await read(stream)) is not grpc.aio.EOF:
        replies.append(reply.WhichOneof("message"))
    assert replies[-1] == "records"
    assert rig.stored()[0]["state"] == "stopped"


async def test_the_report_names_backend_and_driver(port: Port) -> None:
    reply = await port.stub.Report(
        sandbox_manager_pb2.ReportRequest(tenant=TENANT_REF), metadata=port.metadata
    )
    report = json.loads(reply.report.text)
    assert list(report) == ["preference", "backend", "isolation", "reason", "probes", "defaultImage"]
    assert (report["backend"], report["isolation"]) == ("virtual", "process")


async def _remove(port: Port, **what: Any) -> str:
    asked = sandbox_manager_pb2.RemoveRequest(tenant=TENANT_REF, **what)
    reply = await port.stub.Remove(asked, metadata=port.metadata)
    return str(reply.invalid_key)


async def test_removal_deletes_files_and_records(port: Port, rig: Rig) -> None:
    await converse(port.run(), request(effect="a", bash="true"))
    await converse(port.run(), request(effect="b", sandbox="box", bash="true"))
    assert await _remove(port, keys=[KEY]) == ""
    assert [record["sandboxId"] for record in rig.stored()] == ["box"]
    assert await _remove(port, sandbox_ids=["box", "none"]) == ""
    assert (rig.stored(), rig.backend.kept) == ([], {})
    rig.backend.kept["nylorun-tn_a-00000000000000ff"] = {}
    assert await _remove(port, all=True) == ""
    assert rig.backend.kept == {}


@pytest.mark.spec("sandbox-manager:19.29")
@pytest.mark.parametrize("key", ["nylorun-other-e8bc163c82eee187", "nylorun-tn_a-/../x", f"{KEY}/../x", ""])
async def test_a_foreign_key_ends_a_removal_where_it_stands(port: Port, rig: Rig, key: str) -> None:
    await converse(port.run(), request(bash="true"))
    rig.backend.kept["nylorun-tn_a-00000000000000ff"] = {}
    assert await _remove(port, keys=[KEY, key or " ", "nylorun-tn_a-00000000000000ff"]) == (key or " ")
    assert list(rig.backend.kept) == ["nylorun-tn_a-00000000000000ff"]


# Refusals


@pytest.mark.parametrize(
    "first",
    [
        START,
        abort(),
        sandbox_manager_pb2.RunRequest(),
        request(tool=_tool("rm", path="x")),
        request(),
        request(owner="", bash="true"),
        request(sandbox="", bash="true"),
        request(effect="x" * 600, bash="true"),
        request(tenant="a/b", bash="true"),
        request(tenant="", bash="true"),
        request(spec="{", bash="true"),
        request(tool=sandbox_manager_pb2.ToolOperation(tool="bash", input=common_pb2.Json(text="{"))),
        request(effect=None, read_bytes=sandbox_manager_pb2.ReadBytesOperation(path="a", max_bytes=-1)),
        request(effect=None, list_files=sandbox_manager_pb2.ListFilesOperation(dir="a", max_entries=-1)),
    ],
)
async def test_requests_that_are_not_valid_are_refused(
    port: Port, rig: Rig, first: sandbox_manager_pb2.RunRequest
) -> None:
    stream = port.run()
    await stream.write(first)
    assert await _status(stream) is grpc.StatusCode.INVALID_ARGUMENT
    assert rig.backend.said == []


async def test_input_that_is_no_object_counts_as_empty(port: Port) -> None:
    for number, text in enumerate(("", "null", "[]", '"x"')):
        tool = sandbox_manager_pb2.ToolOperation(tool="read", input=common_pb2.Json(text=text))
        _, end = await converse(port.run(), request(effect=f"e{number}", tool=tool))
        assert outcome_of(end)["code"] == "sandbox.not_found"
        assert "/workspace/undefined" in outcome_of(end)["message"]


async def test_another_tenant_is_refused_and_named(port: Port) -> None:
    await converse(port.run(), request(bash="true"))
    stream = port.run()
    await stream.write(request(tenant="tn_b", bash="true"))
    assert await _status(stream) is grpc.StatusCode.FAILED_PRECONDITION
    assert "tn_b" in str(await stream.details())
    other = sandbox_manager_pb2.TenantRef(tenant_id="tn_b")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await port.stub.Report(sandbox_manager_pb2.ReportRequest(tenant=other), metadata=port.metadata)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_port_without_the_bearer_is_closed(port: Port) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await port.stub.Report(sandbox_manager_pb2.ReportRequest(tenant=TENANT_REF))
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_draining_manager_takes_nothing_new(port: Port) -> None:
    await port.service.stop_taking()
    stream = port.run()
    await stream.write(request(bash="true"))
    assert await _status(stream) is grpc.StatusCode.UNAVAILABLE
    assert await _not_started(stream)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _remove(port, all=True)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_closing_kills_what_runs_and_records_it(tmp_path: Path) -> None:
    async with fake_port(tmp_path) as port:
        assert port.rig is not None
        rig = port.rig
        gate = rig.backend.gate("wait")
        stream = port.run()
        running = asyncio.create_task(converse(stream, request(bash="wait")))
        await gate.entered.wait()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await running
    assert rig.backend.said[-1] == "close"
    assert [record["state"] for record in rig.stored()] == ["stopped"]


async def test_a_fault_never_shows_its_text(port: Port, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(spec: object) -> None:
        raise ValueError("very-secret")

    monkeypatch.setattr(rig.backend, "open", broken)
    _, end = await converse(port.run(), request(bash="true"))
    assert "very-secret" not in str(end)
    assert end.WhichOneof("message") == "raised"
