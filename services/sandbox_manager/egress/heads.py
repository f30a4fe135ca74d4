"""The head of a request to the proxy: read strictly, written anew (sandbox-manager 16.3.7). No I/O.

What two programs could read in two ways is refused, never guessed: a request that the proxy takes for one to
an allowed host must be that for the server, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from services.sandbox_manager.egress.hosts import plain_host

MOST_HEAD_BYTES: Final = 64 * 1024
PORTS: Final = frozenset({80, 443})
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
"""Of plain HTTP; inside of a tunnel nobody looks."""
END_OF_HEAD: Final = b"\r\n\r\n"

_REQUEST: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_TUNNEL: Final = re.compile(r"([A-Za-z0-9._-]+):([0-9]{1,5})")
_ABSOLUTE: Final = re.compile(r"(?i:http)://([A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[^#]*|\?[^#]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_ONE_HOP: Final = frozenset(
    {
        b"connection",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"content-length",
        b"upgrade",
    }
)
"""Fields that are made anew or end here."""

CHUNKED: Final = -1


class BadRequest(Exception):
    """A request that is refused, with the status and the text of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Tunnel:
    """CONNECT: bytes both ways to a host (in the form of `plain_host`)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Forward:
    """One plain request: its head as it is sent on, and the length of its body (or CHUNKED)."""

    host: str
    port: int
    head: bytes
    body: int


def read_head(head: bytes) -> Tunnel | Forward:
    """Reads a head without its empty line. Raises BadRequest."""
    lines = head.split(b"\r\n")
    if any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0")):
        raise BadRequest(400, "The request's lines don't end as they must.")
    request = _REQUEST.fullmatch(lines[0])
    if request is None:
        raise BadRequest(400, "The request line can't be read.")
    fields = [_field(line) for line in lines[1:]]
    method, target, minor = request[1].decode(), request[2].decode(), request[3]
    if method == "CONNECT":
        return _tunnel(target)
    if method not in METHODS:
        raise BadRequest(405, f"The method {method[:32]} is not passed on.")
    return _forward(method, target, minor == b"1", fields)


def _field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise BadRequest(400, "A header field can't be read.")
    return match[1].lower(), match[2].rstrip(b" \t")


def _tunnel(target: str) -> Tunnel:
    match = _TUNNEL.fullmatch(target)
    if match is None:
        raise BadRequest(400, "CONNECT takes a host name and a port.")
    host, port = _destination(match[1], int(match[2]))
    return Tunnel(host, port)


def _forward(method: str, target: str, newer: bool, fields: list[tuple[bytes, bytes]]) -> Forward:
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise BadRequest(400, "A plain request takes a URL that begins with http:// and a host name.")
    host, port = _destination(match[1], int(match[2] or 80))
    body = _body(fields, newer)
    path = match[3] or "/"
    if path.startswith("?"):
        path = "/" + path
    authority = host if port == 80 else f"{host}:{port}"
    dropped = _ONE_HOP | _named_by_connection(fields)
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: " + authority.encode()]
    lines += [name + b": " + value for name, value in fields if name not in dropped]
    if body == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    elif body or any(name == b"content-length" for name, _ in fields):
        lines.append(b"Content-Length: %d" % body)
    lines.append(b"Connection: close")
    return Forward(host, port, b"\r\n".join(lines) + END_OF_HEAD, body)


def _destination(name: str, port: int) -> tuple[str, int]:
    host = plain_host(name)
    if host is None:
        raise BadRequest(403, f"{name[:253]} is no host name; addresses are not reachable from here.")
    if port not in PORTS:
        raise BadRequest(403, f"Port {port} is not reachable from here, only 80 and 443.")
    return host, port


def _body(fields: list[tuple[bytes, bytes]], newer: bool) -> int:
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if codings:
        if lengths or not newer or codings != [b"chunked"]:
            raise BadRequest(400, "The length of the request's body is not clear.")
        return CHUNKED
    if not lengths:
        return 0
    if len(lengths) > 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise BadRequest(400, "The length of the request's body is not clear.")
    return int(lengths[0])


def _named_by_connection(fields: list[tuple[bytes, bytes]]) -> frozenset[bytes]:
    named = [value for name, value in fields if name == b"connection"]
    return frozenset(word.strip().lower() for value in named for word in value.split(b","))


def refusal(problem: BadRequest) -> bytes:
    """The whole answer to a request that is refused."""
    reasons = {400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 408: "Request Timeout",
               429: "Too Many Requests", 431: "Request Header Fields Too Large",
               502: "Bad Gateway"}  # fmt: skip
    body = (problem.text + "\n").encode()
    head = (
        f"HTTP/1.1 {problem.status} {reasons[problem.status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
