"""The frames of the Harness API channel (harness-api 2.1, 2.2): reading, checking, writing.

Two faults of a peer are told apart. `JsonError`: the message is not JSON, the connection closes with 1007.
`FrameInvalid`: it is JSON and no frame; with an `id` it was meant as a request and is answered `invalid`,
without one the connection closes with 1000. A frame that nests too deep is neither: it comes back as
`TooDeep` and only its own request, answer or message fails.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from protocol import jsjson
from protocol.errors import ErrorCode, is_error_code
from protocol.jsjson import JsonDepthError, JsonValue
from protocol.jsonscan import nested_spans

MAX_INTEGER: Final = 2**53 - 1


class FrameInvalid(ValueError):
    """A JSON value that is no frame. `id` is the request's number when the fault can be answered."""

    def __init__(self, frame_id: int | float | None, reason: str) -> None:
        super().__init__(reason)
        self.id = frame_id
        self.reason = reason


class Request(msgspec.Struct, frozen=True):
    """Asks the peer. `plain` as in jsjson.Parsed, for `p` and its parts."""

    id: int
    m: str
    p: Any
    plain: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The success of a request. `plain` as for Request, for `r`."""

    id: int
    r: Any
    plain: bool = False


class Refusal(msgspec.Struct, frozen=True):
    """The failure of a request."""

    id: int
    code: ErrorCode
    message: str


class Message(msgspec.Struct, frozen=True):
    """One way, without an answer."""

    m: str
    p: Any
    plain: bool = False


class AbortFrame(msgspec.Struct, frozen=True):
    """The requester gave up its own request."""

    id: int


class Ping(msgspec.Struct, frozen=True):
    """Counts as heard, nothing else."""


class TooDeep(msgspec.Struct, frozen=True):
    """A frame below whose first level the nesting passes 900 levels; its payload was not read.

    `id` is None for a message only.
    """

    t: Literal["req", "res", "msg"]
    id: int | None


Frame: TypeAlias = Request | Answer | Refusal | Message | AbortFrame | Ping | TooDeep


def decode_frame(text: str | bytes) -> Frame:
    """Reads one WebSocket text message. Raises JsonError or FrameInvalid."""
    try:
        parsed = jsjson.parse(text)
    except JsonDepthError:
        return _too_deep(text)
    return frame_of(parsed.value, plain=parsed.plain)


def frame_of(value: JsonValue, *, plain: bool = False) -> Frame:
    """The frame that a JSON value is. Raises FrameInvalid."""
    if not isinstance(value, dict):
        raise FrameInvalid(None, "a frame is an object")
    kind = value.get("t")
    if kind == "req":
        _expect_keys(value, _REQUEST_KEYS)
        return Request(_frame_id(value), _method(value), value["p"], plain)
    if kind == "res":
        return _answer_of(value, plain)
    if kind == "msg":
        _expect_keys(value, _MESSAGE_KEYS)
        return Message(_method(value), value["p"], plain)
    if kind == "abort":
        _expect_keys(value, _ABORT_KEYS)
        return AbortFrame(_frame_id(value))
    if kind == "ping":
        _expect_keys(value, _PING_KEYS)
        return Ping()
    raise FrameInvalid(None, "unknown frame type")


_REQUEST_KEYS: Final = frozenset({"t", "id", "m", "p"})
_ANSWER_KEYS: Final = frozenset({"t", "id", "ok", "r"})
_REFUSAL_KEYS: Final = frozenset({"t", "id", "ok", "e"})
_ERROR_KEYS: Final = frozenset({"code", "message"})
_MESSAGE_KEYS: Final = frozenset({"t", "m", "p"})
_ABORT_KEYS: Final = frozenset({"t", "id"})
_PING_KEYS: Final = frozenset({"t"})


def _answer_of(value: dict[str, Any], plain: bool) -> Answer | Refusal:
    ok = value.get("ok")
    if ok is True:
        _expect_keys(value, _ANSWER_KEYS)
        return Answer(_frame_id(value), value["r"], plain)
    if ok is not False:
        raise FrameInvalid(None, "an answer says whether it is ok")
    _expect_keys(value, _REFUSAL_KEYS)
    error = value["e"]
    if not isinstance(error, dict) or error.keys() != _ERROR_KEYS:
        raise FrameInvalid(None, "a refusal has a code and a message")
    code, message = error["code"], error["message"]
    if not is_error_code(code) or not isinstance(message, str):
        raise FrameInvalid(None, "a refusal has one of the seven codes and a text")
    return Refusal(_frame_id(value), code, message)


def _expect_keys(value: dict[str, Any], keys: frozenset[str]) -> None:
    if value.keys() != keys:
        raise FrameInvalid(
            _answerable_id(value), f"a {value['t']} frame has the keys {', '.join(sorted(keys))}"
        )


def _frame_id(value: dict[str, Any]) -> int:
    number = value["id"]
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MAX_INTEGER:
        raise FrameInvalid(_answerable_id(value), "an id is a positive integer below 2^53")
    return number


def _method(value: dict[str, Any]) -> str:
    method = value["m"]
    if not isinstance(method, str) or not method:
        raise FrameInvalid(_answerable_id(value), "a method is a string that is not empty")
    return method


def _answerable_id(value: dict[str, Any]) -> int | float | None:
    number = value.get("id")
    if value.get("t") != "req" or isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return number


# Frames that nest too deep


def _too_deep(text: str | bytes) -> Frame:
    frame = frame_of(jsjson.loads(_cut_below_first_level(text)))
    match frame:
        case Request():
            return TooDeep("req", frame.id)
        case Answer():
            return TooDeep("res", frame.id)
        case Message():
            return TooDeep("msg", None)
        case _:
            raise FrameInvalid(None, "a frame nests too deep where it must not nest")


def _cut_below_first_level(text: str | bytes) -> bytes:
    """The text with `null` for every container inside the outermost one."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    pieces: list[bytes] = []
    kept_from = 0
    for begin, end in nested_spans(data):
        pieces.append(data[kept_from:begin])
        kept_from = end
    pieces.append(data[kept_from:])
    return b"null".join(pieces)


# Writing


def encode_request(frame_id: int, method: str, params: Any, *, plain: bool = False) -> str:
    """A request's text. `plain` says that orjson may write the params (jsjson.dumps)."""
    return jsjson.dumps({"t": "req", "id": frame_id, "m": method, "p": params}, plain=plain)


def encode_answer(frame_id: int | float, result: Any, *, plain: bool = False) -> str:
    """A success's text."""
    return jsjson.dumps({"t": "res", "id": frame_id, "ok": True, "r": result}, plain=plain)


def encode_refusal(frame_id: int | float, code: ErrorCode, message: str) -> str:
    """A refusal's text. An answerable id of an invalid request may be any number."""
    return jsjson.dumps({"t": "res", "id": frame_id, "ok": False, "e": {"code": code, "message": message}})


def encode_message(method: str, params: Any, *, plain: bool = False) -> str:
    """A message's text."""
    return jsjson.dumps({"t": "msg", "m": method, "p": params}, plain=plain)


def encode_abort(frame_id: int) -> str:
    """The text that gives up a request."""
    return jsjson.dumps({"t": "abort", "id": frame_id})
