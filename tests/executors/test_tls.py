"""The executors' channels over TLS: names, certificates that change, calls that go on (operations 12.3)."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from cli.dev_ca import spiffe_id, write_all
from gateway.executors import replica_set
from gateway.executors.contract import AbortSignal
from gateway.executors.factory import connect
from services.common.server import Port, ServerSettings
from services.common.telemetry import Telemetry
from services.common.tls import TlsSettings
from tests.common.support import BOUND_S, TOKEN, until
from tests.executors.support import (
    QUICK,
    McpDouble,
    ModelDouble,
    SandboxDouble,
    Target,
    model_effect,
    run_of,
)


def tls_of(folder, name, clients=()):
    return TlsSettings(
        True, str(folder / f"{name}.pem"), str(folder / f"{name}.key"), str(folder / "ca.pem"), clients
    )


@contextlib.asynccontextmanager
async def tls_world(folder, **changes):
    """Three doubles over mTLS without any token, dialled by name and by address; (doubles, connected)."""
    doubles, ports, targets = [ModelDouble(), McpDouble(), SandboxDouble()], [], {}
    try:
        for double in doubles:
            tls = tls_of(folder, double.service, (spiffe_id("gateway"),))
            settings = ServerSettings(listen="127.0.0.1:0", token=None, stop_grace_ms=300, tls=tls)
            port = Port(double, settings, Telemetry())
            await port.start()
            ports.append(port)
            number = port.address.rpartition(":")[2]
            host = "127.0.0.1" if double.service == "mcp-pool" else "localhost"
            targets[double.service] = [Target(double.service, f"{host}:{number}")]
        timings = replace(QUICK, certificates_every=0.05, **changes)
        async with connect(targets, {}, timings=timings, tls=tls_of(folder, "gateway")) as connected:
            async with asyncio.timeout(BOUND_S):
                await connected.services_ready()
            yield doubles, connected
    finally:
        for port in ports:
            await port._server.stop(0)


async def execute(connected, effect):
    async with asyncio.timeout(BOUND_S):
        return await connected.executors.model.execute(effect, run_of(), AbortSignal(), False)


async def test_new_certificates_are_taken_over_and_a_running_call_ends_on_the_old_channel(tmp_path):
    write_all(tmp_path, (), 1)
    async with tls_world(tmp_path) as ((model, _, _), connected):
        began, go_on = asyncio.Event(), asyncio.Event()

        async def held(request, context):
            began.set()
            await go_on.wait()
            return await model.answer(request, context)

        model.behaviour = held
        (replica,) = connected.health._sets[0].replicas
        old = replica.channel
        call = asyncio.create_task(execute(connected, model_effect("held")))
        async with asyncio.timeout(BOUND_S):
            await began.wait()
            # A new authority: whoever still used the old files could make no new connection.
            for name in ("ca.pem", "ca.key"):
                (tmp_path / name).unlink()
            write_all(tmp_path, (), 1)
            await until(lambda: replica.channel is not old)
            model.behaviour = None
            await execute(connected, model_effect("next"))
            assert not call.done()
            assert connected.health.ready()
            go_on.set()
            await call
            await until(lambda: not replica._ending)
            assert connected.health.ready()


async def test_a_gateway_whose_name_is_not_allowed_is_told_apart_from_one_without_a_token(tmp_path):
    write_all(tmp_path, (), 1)
    double = ModelDouble()
    settings = ServerSettings(
        listen="127.0.0.1:0", token=None, tls=tls_of(tmp_path, "model-executor", ("somebody.else",))
    )
    port = Port(double, settings, Telemetry())
    await port.start()
    target = {
        name: [Target(name, port.address)] for name in ("model-executor", "mcp-pool", "sandbox-manager")
    }
    try:
        async with connect(target, {}, timings=QUICK, tls=tls_of(tmp_path, "gateway")) as connected:
            (replica,) = connected.health._sets[0].replicas
            async with asyncio.timeout(BOUND_S):
                await until(lambda: replica.problem and "certificate" in replica.problem)
            assert not connected.health.ready()
    finally:
        await port._server.stop(0)


@pytest.mark.parametrize(
    ("served_with", "dialled_with", "host", "said"),
    [
        ("ours", "theirs", "localhost", "is expired, or not one of NYLORUN_GRPC_CA_FILE."),
        ("old", "old", "localhost", "is expired, or not one of NYLORUN_GRPC_CA_FILE."),
        ("ours", "ours", "localhost.localdomain", "is not for the host in the target."),
        (None, "ours", "localhost", "The TLS handshake fails."),
        ("ours", None, "localhost", "It can't be reached."),
    ],
)
async def test_why_there_is_no_connection_is_said(
    tmp_path, served_with, dialled_with, host, said, monkeypatch
):
    for name in ("ours", "theirs", "old"):
        write_all(tmp_path / name, (), 0 if name == "old" else 1)
    tls = None if served_with is None else tls_of(tmp_path / served_with, "model-executor")
    port = Port(ModelDouble(), ServerSettings(listen="127.0.0.1:0", token=TOKEN, tls=tls), Telemetry())
    await port.start()
    number = port.address.rpartition(":")[2]
    names = ("model-executor", "mcp-pool", "sandbox-manager")
    targets = {name: [Target(name, f"{host}:{number}")] for name in names}

    async def found(name):
        return (f"ipv4:127.0.0.1:{name.port}",)

    monkeypatch.setattr(replica_set, "resolve", found)
    dial = None if dialled_with is None else tls_of(tmp_path / dialled_with, "gateway")
    try:
        async with connect(targets, dict.fromkeys(names, TOKEN), timings=QUICK, tls=dial) as connected:
            await until(lambda: connected.health.reasons().get("model-executor", "").endswith(said))
    finally:
        await port._server.stop(0)
