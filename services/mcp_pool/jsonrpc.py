"""JSON-RPC over lines, without I/O: bytes in, messages out, and back (mcp-pool 3 and 4).

A line ends with a newline, a carriage return before it does no harm. What is not a JSON-RPC message of MCP
is dropped, as servers print to stdout what belongs on stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protocol.jsjson import JsonDepthError, JsonError, JsonValue, Parsed, dumps_bytes, parse
from protocol.mcp_client import METHOD_NOT_FOUND

# Far beyond what is passed on; a deeper answer fails its own request instead of leaving it without one.
_SCAN_DEPTH: Final = 1_000_000


class LineTooLong(Exception):
    """More than the limit came without a newline."""


class LineSplitter:
    """Collects output and gives whole lines, without their newline.

    Lines that came whole, in a piece for which `matters` is False, are left out: a flood costs little.
    """

    def __init__(self, limit: int, matters: Callable[[bytes], bool] = lambda _: True) -> None:
        self._limit = limit
        self._matters = matters
        self._pieces: list[bytes] = []
        self._size = 0
        self.skipped = 0
        """Bytes of the last output whose lines were left out."""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes output and returns the lines that it completes.

        Raises LineTooLong for a line above the limit, finished or not; the splitter is of no use after it.
        """
        lines: list[bytes] = []
        self.skipped = 0
        first, last = data.find(b"\n"), data.rfind(b"\n")
        rest = data[last + 1 :]
        if first >= 0:
            self._pieces.append(data[:first])
            lines.append(b"".join(self._pieces))
            self._pieces.clear()
            self._size = 0
            whole = data[first + 1 : last]
            if last > first and (len(whole) > self._limit or self._matters(whole)):
                lines += whole.split(b"\n")
            else:
                self.skipped = len(whole)
            if max(map(len, lines)) > self._limit:
                raise LineTooLong
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise LineTooLong
        return lines


@dataclass(frozen=True, slots=True)
class Answer:
    """A result for one of our requests; `plain` as in Parsed, `size` is the line's length in bytes."""

    id: int
    result: JsonValue
    plain: bool
    size: int


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error for one of our requests."""

    id: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class TooDeep:
    """An answer to one of our requests that nests deeper than a document may."""

    id: int


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request of the server's."""

    id: int | float | str
    method: str


class ToolsListChanged:
    """The server says that its tools are others now."""


TOOLS_LIST_CHANGED: Final = ToolsListChanged()
_TOOLS_LIST_CHANGED: Final = "notifications/tools/list_changed"
_QUOTED: Final = f'"{_TOOLS_LIST_CHANGED}"'.encode()

Incoming = Answer | ErrorAnswer | TooDeep | ServerRequest | ToolsListChanged


def may_matter(lines: bytes) -> bool:
    """False when none of these lines is a message for us, however it is written."""
    return b'"id"' in lines or b"\\" in lines or b"/list_changed" in lines


def read_message(line: bytes) -> Incoming | None:
    """The message of a line; None for a notification that says nothing to us and for what is no message."""
    if b'"id"' not in line and b"\\" not in line:
        # Neither an answer nor a request, however it is written. Not parsed: should it be something else
        # that holds this text, a look at the server's tools does no harm.
        return TOOLS_LIST_CHANGED if _QUOTED in line else None
    try:
        parsed = _parse(line, None)
    except JsonDepthError:
        return _too_deep(line)
    except JsonError:
        return None
    return _classify(parsed, len(line))


def _parse(line: bytes, max_depth: int | None) -> Parsed:
    text: bytes | str = line
    try:
        line.decode()
    except UnicodeDecodeError:
        text = line.decode(errors="replace")
    return parse(text) if max_depth is None else parse(text, max_depth=max_depth)


def _too_deep(line: bytes) -> TooDeep | None:
    try:
        message = _classify(_parse(line, _SCAN_DEPTH), len(line))
    except JsonError:
        return None
    return TooDeep(message.id) if isinstance(message, Answer | ErrorAnswer) else None


def _classify(parsed: Parsed, size: int) -> Incoming | None:
    message = parsed.value
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return None
    method = message.get("method")
    if "id" not in message:
        return TOOLS_LIST_CHANGED if method == _TOOLS_LIST_CHANGED else None
    id_ = message["id"]
    if isinstance(method, str):
        if isinstance(id_, bool) or not isinstance(id_, int | float | str):
            return None
        return ServerRequest(id_, method)
    own = _own_id(id_)
    if own is None or method is not None:
        return None
    error = message.get("error")
    if "result" in message and error is None:
        return Answer(own, message["result"], parsed.plain, size)
    if not isinstance(error, dict) or "result" in message:
        return None
    code, text = error.get("code"), error.get("message")
    if isinstance(code, bool) or not isinstance(code, int) or not isinstance(text, str):
        return None
    return ErrorAnswer(own, code, text)


def _own_id(id_: object) -> int | None:
    # Our ids are numbers; some servers give them back as text.
    if isinstance(id_, str) and id_.isascii() and id_.isdigit() and len(id_) < 16:
        return int(id_)
    return id_ if isinstance(id_, int) and not isinstance(id_, bool) else None


def write_request(id_: int, method: str, params: JsonValue, plain: bool) -> bytes:
    """A request's line; None for params leaves them out. A RawJson may stand inside."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id_, "method": method}
    if params is not None:
        message["params"] = params
    return dumps_bytes(message, plain=plain) + b"\n"


def write_notification(method: str, params: JsonValue = None) -> bytes:
    """A notification's line."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return dumps_bytes(message) + b"\n"


def write_reply(request: ServerRequest) -> bytes:
    """The answer to a request of the server's: `{}` for a ping, "method not found" for the rest."""
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request.id}
    if request.method == "ping":
        reply["result"] = {}
    else:
        reply["error"] = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
    return dumps_bytes(reply) + b"\n"
