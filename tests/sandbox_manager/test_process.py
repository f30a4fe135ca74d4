"""The real process: its start, its lock, its end, and what a kill leaves."""

import asyncio
import json
import signal as signals
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
import psutil
import pytest
from whippletree.v1 import common_pb2, sandbox_manager_pb2

from services.common.channel import bearer
from tests.common.support import TOKEN, socket_folder
from tests.sandbox_manager.running import Running, environment, started
from tests.sandbox_manager.support import (
    BOUND,
    TENANT,
    ack,
    begin,
    converse,
    outcome_of,
    read,
    request,
    until,
)

pytestmark = pytest.mark.system

DRIVERS = ("bwrap", "emulated")


@pytest.fixture
def sockets() -> Iterator[Path]:
    with socket_folder() as folder:
        yield folder


async def _usable(running: Running, driver: str) -> None:
    tenant = sandbox_manager_pb2.TenantRef(tenant_id=TENANT)
    reply = await running.stub.Report(
        sandbox_manager_pb2.ReportRequest(tenant=tenant), metadata=bearer(TOKEN), wait_for_ready=True
    )
    report = json.loads(reply.report.text)
    if report["backend"] is None:
        pytest.skip(f"driver {driver}: {report['reason']}")


async def _begun(running: Running, command: str) -> Any:
    """A stream whose command has made the file `began`."""
    stream = running.run()
    assert await begin(stream, request(effect="running", bash=f"touch began; {command}")) is None
    for _ in range(2):
        await stream.write(ack((await read(stream)).event.seq))
    await until(running.began)
    return stream


async def _ends(pids: set[int]) -> None:
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_process_serves_and_ends_cleanly_on_sigterm(
    tmp_path: Path, sockets: Path, driver: str
) -> None:
    async with started(tmp_path, sockets, driver) as running:
        await _usable(running, driver)
        _, end = await converse(running.run(), request(bash="echo hi"))
        assert outcome_of(end)["output"]["stdout"] == "hi\n"
        children = {child.pid for child in psutil.Process(running.process.pid).children(recursive=True)}
        running.process.send_signal(signals.SIGTERM)
        async with asyncio.timeout(BOUND):
            assert await running.process.wait() == 0
        assert [record["state"] for record in running.records()] == ["stopped"]
        await _ends(children)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_sigterm_in_the_middle_of_a_command_ends_it_within_the_grace(
    tmp_path: Path, sockets: Path, driver: str
) -> None:
    async with started(tmp_path, sockets, driver) as running:
        await _usable(running, driver)
        await _begun(running, "sleep 60")
        children = {child.pid for child in psutil.Process(running.process.pid).children(recursive=True)}
        running.process.send_signal(signals.SIGTERM)
        async with asyncio.timeout(BOUND):
            assert await running.process.wait() == 0
        assert [record["state"] for record in running.records()] == ["stopped"]
        await _ends(children)


@pytest.mark.faults
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_killed_manager_takes_its_commands_along_and_loses_no_file(
    tmp_path: Path, sockets: Path, driver: str
) -> None:
    async with started(tmp_path, sockets, driver) as running:
        await _usable(running, driver)
        stream = await _begun(running, "echo x >> count; sleep 60; echo x >> count")
        children = {child.pid for child in psutil.Process(running.process.pid).children(recursive=True)}
        assert children
        running.process.kill()
        await running.process.wait()
        with pytest.raises(grpc.aio.AioRpcError):
            await read(stream)
        await _ends(children)
    async with started(tmp_path, sockets, driver) as running:
        await _usable(running, driver)
        assert [record["state"] for record in running.records()] == ["running"]
        events, end = await converse(running.run(), request(effect="after", bash="cat count"))
        assert outcome_of(end)["output"]["stdout"] == "x\n"
        assert json.loads(events[0].payload.text)["reattach"] is True


@pytest.mark.faults
async def test_a_second_stream_of_a_running_command_joins_it(tmp_path: Path, sockets: Path) -> None:
    async with started(tmp_path, sockets) as running:
        command = "touch began; echo x >> count; sleep 1; cat count"
        first = asyncio.create_task(converse(running.run(), request(bash=command)))
        await until(running.began)
        second = asyncio.create_task(converse(running.run(), request(bash=command)))
        ends = [end for _, end in await asyncio.gather(first, second)]
        assert [outcome_of(end)["output"]["stdout"] for end in ends] == ["x\n", "x\n"]


@pytest.mark.spec("operations:13.26")
async def test_a_second_manager_is_refused_with_the_holder(tmp_path: Path, sockets: Path) -> None:
    async with started(tmp_path, sockets) as running:
        with socket_folder() as other:
            second = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.sandbox_manager.main",
                env=environment(tmp_path, other, "emulated"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
            async with asyncio.timeout(BOUND):
                _, stderr = await second.communicate()
        assert second.returncode == 1
        assert stderr.count(b"\n") == 1
        assert f"process {running.process.pid} on host".encode() in stderr


@pytest.mark.spec("sandbox-manager:19.7")
async def test_an_unreadable_records_file_stops_the_start_in_one_line(tmp_path: Path, sockets: Path) -> None:
    (tmp_path / "sandboxes" / "records.json").mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.sandbox_manager.main",
        env=environment(tmp_path, sockets, "emulated"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    async with asyncio.timeout(BOUND):
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert b"records.json" in stderr
    assert b"Traceback" not in stderr


@pytest.mark.spec("sandbox-manager:19.26")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_commands_find_no_token_of_the_process(tmp_path: Path, sockets: Path, driver: str) -> None:
    async with started(tmp_path, sockets, driver) as running:
        await _usable(running, driver)
        command = "env; for f in /proc/*/environ /proc/*/cmdline; do cat $f; done; grep -r . /tmp /workspace"
        _, end = await converse(running.run(), request(bash=command))
        text = json.dumps(outcome_of(end))
        assert TOKEN not in text
        assert "NYLORUN" not in text


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_fresh_process_has_loaded_what_its_threads_need(
    tmp_path: Path, sockets: Path, driver: str
) -> None:
    """File threads of a root process may not be able to read Python's own library."""
    async with started(tmp_path, sockets, driver) as running:
        await _usable(running, driver)
        listed = sandbox_manager_pb2.ListFilesOperation(dir=".", max_entries=5)
        read_bytes = sandbox_manager_pb2.ReadBytesOperation(path="é😀", max_bytes=5)
        for number, (tool, input_) in enumerate(
            [
                ("write", {"path": "é😀", "content": "\ud800é"}),
                ("read", {"path": "é😀", "offset": 1}),
                ("edit", {"path": "é😀", "old_string": "é", "new_string": "😀"}),
                ("grep", {"pattern": "[[:alpha:]]|😀"}),
                ("glob", {"pattern": "*{é,x}*"}),
                ("bash", {"command": "cat é*; sort é*; date; env; tar -cf t é*; gzip t; base64 é* | wc -c"}),
            ]
        ):
            text = common_pb2.Json(text=json.dumps(input_))
            operation = sandbox_manager_pb2.ToolOperation(tool=tool, input=text)
            _, end = await converse(running.run(), request(effect=f"e{number}", tool=operation))
            assert outcome_of(end)["kind"] == "completed"
        _, end = await converse(running.run(), request(effect=None, list_files=listed))
        assert "é😀" in [entry.path for entry in end.listing.entries]
        _, end = await converse(running.run(), request(effect=None, read_bytes=read_bytes))
        assert outcome_of(end)["code"] == "artifact.too_large"


async def test_the_kind_of_an_abort_crosses_by_cancel(tmp_path: Path, sockets: Path) -> None:
    async with started(tmp_path, sockets) as running:
        stream = await _begun(running, "sleep 60")
        effect = common_pb2.EffectRef(tenant_id=TENANT, session_id="s1", effect_id="running")
        asked = common_pb2.CancelRequest(effect=effect, kind=common_pb2.ABORT_KIND_CANCEL)
        reply = await running.stub.Cancel(asked, metadata=bearer(TOKEN))
        assert reply.state == common_pb2.CancelReply.STATE_STOPPING
        executed = await read(stream)
        assert json.loads(executed.event.payload.text)["killed"] is True
        await stream.write(ack(executed.event.seq))
        assert outcome_of(await read(stream))["output"]["exitCode"] == 130
