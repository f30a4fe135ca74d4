"""TLS and mTLS on a port: who gets in, what a client checks, and certificates that change (operations 12.4)."""

import asyncio
import contextlib
import os
import stat
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import admin_pb2, admin_pb2_grpc

from cli.dev_ca import spiffe_id, write_all
from cli.healthcheck import Unhealthy, check
from services.common.channel import bearer, open_channel
from services.common.logs import configure_logging
from services.common.process import StartFailed
from services.common.server import ServerSettings, read_server_settings, serve
from services.common.settings import Environment
from services.common.tls import CertificateFiles, CertificatesUnusable, Pem, TlsSettings
from tests.common.support import BOUND_S, TOKEN, Recorder, served

GATEWAY = spiffe_id("gateway")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ca")
    write_all(folder, ("far.example",), 1)
    return folder


def server_tls(folder: Path, *, mutual: bool = True, clients: tuple[str, ...] = ()) -> TlsSettings:
    return TlsSettings(
        mutual,
        str(folder / "model-executor.pem"),
        str(folder / "model-executor.key"),
        str(folder / "ca.pem") if mutual else None,
        clients,
    )


def pem_of(folder: Path, name: str | None) -> Pem:
    cert = None if name is None else (folder / f"{name}.pem").read_bytes()
    key = None if name is None else (folder / f"{name}.key").read_bytes()
    return Pem(cert, key, (folder / "ca.pem").read_bytes())


async def ask(address: str, pem: Pem | None, *, token: str | None = TOKEN, server: str | None = None):
    """What Describe answers: the service's name, or the status code."""
    async with open_channel(address, tls=pem, server_name=server) as channel:
        try:
            reply = await admin_pb2_grpc.AdminStub(channel).Describe(
                admin_pb2.DescribeRequest(), metadata=bearer(token), timeout=BOUND_S
            )
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return reply.service


async def test_with_tls_a_client_needs_the_ca_the_right_name_and_still_the_bearer(made):
    async with served(Recorder(), listen="127.0.0.1:0", tls=server_tls(made, mutual=False)) as port:
        ours = pem_of(made, None)
        assert await ask(port.address, ours) == Recorder.service
        assert await ask(port.address, ours, server="far.example") == Recorder.service
        assert await ask(port.address, ours, server="harness-model") == Recorder.service
        assert await ask(port.address, ours, token=None) == "UNAUTHENTICATED"
        assert await ask(port.address, ours, server="harness-mcp") == "UNAVAILABLE"
        assert await ask(port.address, Pem(None, None, None)) == "UNAVAILABLE"
        assert await ask(port.address, None) == "UNAVAILABLE"


async def test_with_mtls_a_client_without_a_certificate_of_the_ca_gets_no_connection(made, tmp_path):
    write_all(tmp_path, (), 1)
    stranger = pem_of(tmp_path, "gateway")
    async with served(Recorder(), listen="127.0.0.1:0", tls=server_tls(made)) as port:
        assert await ask(port.address, pem_of(made, "gateway")) == Recorder.service
        assert await ask(port.address, pem_of(made, None)) == "UNAVAILABLE"
        foreign = Pem(stranger.cert, stranger.key, pem_of(made, None).ca)
        assert await ask(port.address, foreign) == "UNAVAILABLE"


@pytest.mark.parametrize("allowed", [(GATEWAY,), ("harness", "other")])
async def test_of_the_cas_clients_only_those_with_an_allowed_name_are_served(made, allowed):
    tls = server_tls(made, clients=allowed)
    async with served(Recorder(), listen="127.0.0.1:0", token=None, tls=tls) as port:
        assert await ask(port.address, pem_of(made, "gateway"), token=None) == Recorder.service
        # What a child of a service might get at: that service's own certificate.
        assert await ask(port.address, pem_of(made, "mcp-pool"), token=None) == "PERMISSION_DENIED"
        async with open_channel(port.address, tls=pem_of(made, "mcp-pool")) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await anext(aiter(stub.Drain(admin_pb2.DrainRequest(), timeout=BOUND_S)))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1


async def test_a_token_and_allowed_clients_are_both_asked_for(made):
    tls = server_tls(made, clients=(GATEWAY,))
    async with served(Recorder(), listen="127.0.0.1:0", tls=tls) as port:
        assert await ask(port.address, pem_of(made, "gateway"), token=None) == "UNAUTHENTICATED"
        assert await ask(port.address, pem_of(made, "mcp-pool")) == "PERMISSION_DENIED"
        assert await ask(port.address, pem_of(made, "gateway")) == Recorder.service


async def test_a_new_certificate_is_shown_to_the_next_connection_and_old_connections_go_on(tmp_path, capsys):
    configure_logging("model-executor")
    write_all(tmp_path, (), 1)
    first = pem_of(tmp_path, "gateway")
    async with (
        served(Recorder(), listen="127.0.0.1:0", tls=server_tls(tmp_path)) as port,
        open_channel(port.address, tls=first) as channel,
    ):
        stub = admin_pb2_grpc.AdminStub(channel)
        await stub.Describe(admin_pb2.DescribeRequest(), metadata=bearer(TOKEN), timeout=BOUND_S)
        for name in ("ca.pem", "ca.key"):
            (tmp_path / name).unlink()
        write_all(tmp_path, (), 1)
        # The old connection goes on; new ones are met with the new authority's certificate.
        await stub.Describe(admin_pb2.DescribeRequest(), metadata=bearer(TOKEN), timeout=BOUND_S)
        assert await ask(port.address, pem_of(tmp_path, "gateway")) == Recorder.service
        assert await ask(port.address, first) == "UNAVAILABLE"
    assert "grpc_certificates_read" in capsys.readouterr().out


def test_files_that_do_not_belong_together_leave_the_last_good_ones_in_use(tmp_path, capsys):
    configure_logging("model-executor")
    write_all(tmp_path, (), 1)
    files = CertificateFiles(server_tls(tmp_path))
    good, key = files.pem, tmp_path / "model-executor.key"
    assert not files.changed()
    before = key.read_bytes()
    key.write_bytes((tmp_path / "gateway.key").read_bytes())
    assert not files.changed()
    assert not files.changed()
    assert files.pem is good
    key.unlink()
    assert not files.changed()
    key.write_bytes(before)
    os.utime(key, ns=(1, 1))
    assert not files.changed(), "the same content again is nothing new"
    write_all(tmp_path, (), 1)
    assert files.changed()
    assert files.pem != good
    assert capsys.readouterr().out.count("grpc_certificates_unusable") == 2
    assert "PRIVATE" not in repr(files.pem)


def test_the_commands_files_keep_keys_to_their_owner_and_the_authority_stays(tmp_path):
    write_all(tmp_path, (), 1)
    authority = (tmp_path / "ca.pem").read_bytes()
    write_all(tmp_path, (), 1)
    assert (tmp_path / "ca.pem").read_bytes() == authority
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    assert len(modes) == 10


async def test_tcp_is_not_served_with_a_certificate_of_the_ca_alone(made):
    settings = ServerSettings(listen="127.0.0.1:0", token=None, tls=server_tls(made))
    with pytest.raises(StartFailed, match="never served without a token"):
        await serve(Recorder(), settings, asyncio.Event())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"NYLORUN_GRPC_CERT_FILE": ""}, "NYLORUN_GRPC_CERT_FILE must be set"),
        ({"NYLORUN_GRPC_CA_FILE": ""}, "NYLORUN_GRPC_CA_FILE must be set"),
        ({"NYLORUN_GRPC_KEY_FILE": "gateway.key"}, "no certificate with its own key"),
        ({"NYLORUN_GRPC_CA_FILE": "gateway.key"}, "NYLORUN_GRPC_CA_FILE holds no certificate"),
        ({"NYLORUN_GRPC_CERT_FILE": "absent"}, "NYLORUN_GRPC_CERT_FILE can't be read"),
        ({"NYLORUN_GRPC_TLS": "off"}, "NYLORUN_GRPC_CERT_FILE is set but NYLORUN_GRPC_TLS is off"),
        ({"NYLORUN_GRPC_TLS": "tls", "NYLORUN_GRPC_ALLOWED_CLIENTS": "a"}, "needs NYLORUN_GRPC_TLS=mtls"),
        ({"NYLORUN_GRPC_TOKEN": ""}, "NYLORUN_GRPC_TOKEN is required"),
        ({}, None),
        ({"NYLORUN_GRPC_TOKEN": "", "NYLORUN_GRPC_ALLOWED_CLIENTS": " a , b"}, None),
    ],
)
def test_what_is_wrong_with_the_settings_is_named(made, changes, problem):
    environ = {
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_GRPC_TLS": "mtls",
        "NYLORUN_GRPC_CERT_FILE": "model-executor.pem",
        "NYLORUN_GRPC_KEY_FILE": "model-executor.key",
        "NYLORUN_GRPC_CA_FILE": "ca.pem",
        **changes,
    }
    env = Environment({k: str(made / v) if k.endswith("_FILE") and v else v for k, v in environ.items()})
    settings = read_server_settings(env, "127.0.0.1:1")
    if problem is None:
        assert env.problems == []
        assert settings.tls is not None
        assert settings.tls.allowed_clients == (
            ("a", "b") if "NYLORUN_GRPC_ALLOWED_CLIENTS" in changes else ()
        )
    else:
        assert problem in "\n".join(env.problems)


@pytest.mark.parametrize("mode", ["tls", "mtls"])
async def test_the_health_check_asks_with_the_services_own_certificate(made, mode):
    class Named(Recorder):
        full_name = "whippletree.v1.ModelExecutor"

    tls = server_tls(made, mutual=mode == "mtls", clients=(GATEWAY,) if mode == "mtls" else ())
    async with served(Named(), listen="127.0.0.1:0", tls=tls) as port:
        environ = {
            "NYLORUN_GRPC_LISTEN": port.address,
            "NYLORUN_GRPC_TLS": mode,
            "NYLORUN_GRPC_CERT_FILE": str(made / "model-executor.pem"),
            "NYLORUN_GRPC_KEY_FILE": str(made / "model-executor.key"),
            "NYLORUN_GRPC_CA_FILE": str(made / "ca.pem"),
        }
        await asyncio.to_thread(check, "model-executor", environ)
        with pytest.raises(Unhealthy):
            await asyncio.to_thread(check, "model-executor", {"NYLORUN_GRPC_LISTEN": port.address})
        with pytest.raises(Unhealthy, match="can't be read"):
            await asyncio.to_thread(
                check, "model-executor", environ | {"NYLORUN_GRPC_CERT_FILE": str(made / "absent")}
            )


def test_an_unusable_file_is_an_error_that_names_its_setting(tmp_path):
    with pytest.raises(CertificatesUnusable, match="NYLORUN_GRPC_CERT_FILE"):
        CertificateFiles(TlsSettings(True, str(tmp_path / "a"), str(tmp_path / "b"), None))
    with contextlib.suppress(OSError):
        (tmp_path / "big").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(CertificatesUnusable, match="larger than"):
        CertificateFiles(TlsSettings(False, None, None, str(tmp_path / "big")))
