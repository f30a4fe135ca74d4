"""Where the gate connects to, and what becomes of requests that do not arrive or do not come back."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from services.tool_gate.credentials import GateConfig, ServerEntry
from services.tool_gate.failures import AnswerInvalid, HttpStatus, Lost, RpcError, SessionGone, Unreachable
from services.tool_gate.upstream.exchange import Exchange, current
from services.tool_gate.upstream.http import ServerHttp
from services.tool_gate.upstream.network import CheckedNetwork, check_endpoint
from tests.doubles.http import HttpDouble, serving
from tests.tool_gate.remote_server import serving as serving_mcp
from tests.tool_gate.support import gate, manifest


def network(addresses, *, allow_private=False, own=()):
    asked = []

    async def resolve(host, port):
        asked.append((host, port))
        if isinstance(addresses, Exception):
            raise addresses
        return addresses

    made = CheckedNetwork(allow_private=allow_private, resolve=resolve, is_own=lambda address: address in own)
    return made, asked


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "not an http"),
        ("ftp://far.example/", "not an http"),
        ("https://user:pass@far.example/", "user name"),
        ("https://127.0.0.1/mcp", "127.0.0.1 is an address"),
        ("https://[::1]/mcp", "is an address"),
        ("https://0x7f.1/mcp", "is an address"),
        ("http://2130706433/", "is an address"),
        ("https://far.example:8443/mcp", "ports 80 and 443, not 8443"),
    ],
)
def test_urls_that_the_gate_does_not_go_to(url, says):
    with pytest.raises(Unreachable) as refused:
        check_endpoint(url, allow_private=False)
    assert says in refused.value.message


@pytest.mark.parametrize(
    "url",
    [
        "https://far.example/mcp",
        "http://far.example:80",
        "https://far.example:443/x?y",
        "http://far.example:443",
    ],
)
def test_names_on_the_usual_ports_are_fine(url):
    assert check_endpoint(url, allow_private=False).host == "far.example"


def test_private_servers_may_have_any_address_and_port():
    assert check_endpoint("http://127.0.0.1:18080/mcp", allow_private=True).port == 18080


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1", "169.254.169.254"],
        ["::1"],
        ["fe80::1%eth0"],
        ["::ffff:127.0.0.1"],
        ["203.0.113.9"],
    ],
)
async def test_a_name_without_a_public_address_is_not_connected_to(addresses):
    made, asked = network(addresses)
    with pytest.raises(Unreachable, match="no address on the public Internet; allow_private"):
        await made.connect_tcp("far.example", 443)
    assert asked == [("far.example", 443)]


async def test_a_public_address_of_this_machine_is_not_connected_to():
    made, _ = network(["8.8.8.8"], own=["8.8.8.8"])
    with pytest.raises(Unreachable, match="no address on the public Internet"):
        await made.connect_tcp("far.example", 443)


async def test_a_name_that_can_not_be_resolved_is_told():
    made, _ = network(OSError("nope"))
    with pytest.raises(Unreachable, match=r"far\.example can't be resolved"):
        await made.connect_tcp("far.example", 443)


async def test_the_connection_goes_to_the_address_that_was_checked(tmp_path):
    async with serving(HttpDouble()) as double:
        made, asked = network(["127.0.0.1"], allow_private=True)
        stream = await made.connect_tcp("far.example", double.port)
        assert stream.get_extra_info("server_addr") == ("127.0.0.1", double.port)
        await stream.aclose()
        assert len(asked) == 1


async def test_the_next_address_is_tried_when_one_does_not_answer():
    async with serving(HttpDouble()) as double:
        made, _ = network(["127.0.0.9", "127.0.0.1"], allow_private=True)
        stream = await made.connect_tcp("far.example", double.port)
        await stream.aclose()


async def test_by_default_a_server_on_this_machine_is_not_reached(tmp_path):
    async with serving_mcp("json") as remote:
        async with gate(tmp_path, manifest(remote.declaration), config=GateConfig()) as it:
            answer = await it.client.connect()
        assert "allow_private in its configuration allows it" in answer.message
        assert remote.sessions == set()
        allowed = GateConfig(servers={"far": ServerEntry(allow_private=True)})
        async with gate(tmp_path, manifest(remote.declaration), config=allowed) as it:
            assert (await it.client.connect()).body["ok"]


class Raw(HttpDouble):
    """Answers as the test says."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    async def serve(self, request, wire):
        await self.act(request, wire)


async def post(double, exchange, *, headers=None, content=b"{}", path="/mcp"):
    http = ServerHttp(
        f"{double.origin}/mcp", CheckedNetwork(allow_private=True), {}, ssl.create_default_context()
    )
    mark = current.set(exchange)
    try:
        async with httpx2.AsyncClient(transport=http, trust_env=False) as client:
            async with asyncio.timeout(20):
                answer = await client.post(f"{double.origin}{path}", content=content, headers=headers)
                return answer.status_code, answer.content
    finally:
        current.reset(mark)


def answering(status, body=b"", **headers):
    async def act(request, wire):
        await wire.answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return act


RPC_ERROR = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no"}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "session", "failure", "code"),
    [
        (401, RPC_ERROR, False, HttpStatus, 401),
        (403, RPC_ERROR, False, HttpStatus, 403),
        (404, RPC_ERROR, True, SessionGone, None),
        (404, b"", False, HttpStatus, 404),
        (400, RPC_ERROR, False, RpcError, -32602),
        (500, b"<html>", False, HttpStatus, 500),
        (503, b'{"error": {"code": "x"}}', False, HttpStatus, 503),
        (307, b"", False, HttpStatus, 307),
    ],
)
async def test_error_statuses_are_known_for_what_they_are(status, body, session, failure, code):
    exchange = Exchange()
    async with serving(Raw(answering(status, body, location="https://elsewhere.example/"))) as double:
        headers = {"mcp-session-id": "s"} if session else {}
        assert (await post(double, exchange, headers=headers))[0] == 502
        assert len(double.requests) == 1
    assert type(exchange.failure) is failure
    assert exchange.failure.code == code


async def test_a_connection_that_is_cut_after_the_request_is_lost():
    async def act(request, wire):
        wire.reset()

    exchange = Exchange()
    async with serving(Raw(act)) as double:
        await post(double, exchange)
    assert exchange.sent
    assert type(exchange.failure) is Lost


async def test_a_request_that_is_cut_before_its_end_never_arrived():
    class Early(HttpDouble):
        async def before_body(self, request, wire):
            wire.reset()
            return False

    exchange = Exchange()
    async with serving(Early()) as double:
        await post(double, exchange, content=b"x" * 30_000_000)
    assert not exchange.sent
    assert type(exchange.failure) is Unreachable


async def test_half_an_answer_is_lost():
    async def act(request, wire):
        await wire.answer(200, b'{"a', length=10)
        wire.close()

    exchange = Exchange()
    async with serving(Raw(act)) as double:
        await post(double, exchange)
    assert type(exchange.failure) is Lost


async def test_an_answer_above_the_limit_is_not_read_on(monkeypatch):
    monkeypatch.setattr("services.tool_gate.upstream.http.ANSWER_BYTES", 1000)
    exchange = Exchange()
    async with serving(Raw(answering(200, b"x" * 5000))) as double:
        _, content = await post(double, exchange)
    assert len(content) <= 1000
    assert type(exchange.failure) is AnswerInvalid


async def test_another_origin_is_not_asked():
    exchange = Exchange()
    async with serving(Raw(answering(200))) as double, serving(Raw(answering(200))) as other:
        http = ServerHttp(
            f"{double.origin}/mcp",
            CheckedNetwork(allow_private=True),
            {"A": "secret"},
            ssl.create_default_context(),
        )
        mark = current.set(exchange)
        async with httpx2.AsyncClient(transport=http, trust_env=False) as client:
            await client.post(f"{other.origin}/mcp")
        current.reset(mark)
        assert other.requests == []
    assert type(exchange.failure) is Unreachable


async def test_a_closed_port_is_unreachable():
    async with serving(HttpDouble()) as double:
        origin = double.origin
    exchange = Exchange()
    await ask(origin, exchange)
    assert type(exchange.failure) is Unreachable
    assert "does not answer on port" in exchange.failure.message


def self_signed(folder):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + certificate.public_bytes(Encoding.PEM)
    )
    return path


@pytest.mark.parametrize("trusted", [False, True])
async def test_the_certificate_is_checked_for_the_name_though_the_connection_goes_to_an_address(
    tmp_path, trusted
):
    path = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    tls = ssl.create_default_context(cafile=str(path) if trusted else None)
    exchange = Exchange()
    async with server:
        port = server.sockets[0].getsockname()[1]
        made, _ = network(["127.0.0.1"], allow_private=True)
        status = await ask(f"https://localhost:{port}", exchange, network=made, tls=tls)
        other = Exchange()
        await ask(f"https://elsewhere.example:{port}", other, network=made, tls=tls)
    assert "not trusted" in other.failure.message
    if trusted:
        assert (status, exchange.failure) == (200, None)
    else:
        assert exchange.failure.message == "The certificate of localhost is not trusted."


async def ask(origin, exchange, *, network=None, tls=None):
    http = ServerHttp(
        f"{origin}/mcp",
        network or CheckedNetwork(allow_private=True),
        {},
        tls or ssl.create_default_context(),
    )
    mark = current.set(exchange)
    try:
        async with httpx2.AsyncClient(transport=http, trust_env=False) as client, asyncio.timeout(20):
            return (await client.post(f"{origin}/mcp")).status_code
    finally:
        current.reset(mark)
