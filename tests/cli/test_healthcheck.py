"""A health check asks one question, understands what it hears, and loads nothing that it can do without."""

import socket
import subprocess
import sys
import threading

import pytest

from cli.healthcheck import Unhealthy, check


class Answering:
    """A loopback port that answers one connection with these bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(10)
        self.port = self._socket.getsockname()[1]
        self.request = b""
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.settimeout(10)
            self.request = connection.recv(65536)
            connection.sendall(self._answer)


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n\r\n" + body


def ask(port: int) -> None:
    check("harness", {"NYLORUN_HARNESS_HEALTH_PORT": str(port)})


def test_a_gateway_that_is_connected_is_healthy():
    with Answering(answer(b'{"connected":true}')) as peer:
        ask(peer.port)
    assert peer.request.startswith(b"GET /health HTTP/1.0\r\n")


def test_a_gateway_that_only_answers_is_alive():
    with Answering(answer(b'{"connected":false}')) as peer:
        check("harness", {"NYLORUN_HARNESS_HEALTH_PORT": str(peer.port)}, alive=True)
    with pytest.raises(Unhealthy, match="does not answer"):
        check("harness", {"NYLORUN_HARNESS_HEALTH_PORT": str(peer.port)}, alive=True)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (answer(b'{"connected":false}'), "not connected"),
        (answer(b"{}"), "not connected"),
        (answer(b'{"connected":true}', b"503 Busy"), "does not answer"),
        (answer(b"[true]"), "something else"),
        (answer(b'{"connected":tr'), "does not answer"),
        (b"\x00\xff", "does not answer"),
        (b"", "does not answer"),
    ],
)
def test_every_other_answer_is_one_line_that_says_what_is_wrong(said, complaint):
    with Answering(said) as peer, pytest.raises(Unhealthy, match=complaint) as caught:
        ask(peer.port)
    assert "\n" not in str(caught.value)


def test_nobody_there_is_unhealthy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unhealthy, match="does not answer"):
        ask(port)


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["healthcheck", "--service", "harness"], ("cyclopts", "rich", "grpc", "http.client", "asyncio")),
        (["healthcheck", "--service", "mcp-pool"], ("cyclopts", "rich", "services.mcp_pool", "uvloop")),
        (["--version"], ("cyclopts", "rich", "grpc", "asyncio")),
        (["mcp-pool"], ("cyclopts", "services.sandbox_manager")),
    ],
)
def test_what_is_asked_often_loads_nothing_that_it_can_do_without(words, unneeded):
    code = (
        "import sys, cli.main\n"
        f"cli.main.run({words!r})\n"
        f"found = [name for name in {unneeded!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {found}' if found else 0)"
    )
    environ = {"NYLORUN_HARNESS_HEALTH_PORT": "1", "NYLORUN_GRPC_LISTEN": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
