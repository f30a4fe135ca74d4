"""One connection's channel as an object without I/O, clock or tasks (harness-api 2).

Whoever drives it feeds in what arrives (`receive_text`, `receive_binary`, `receive_close`) and what is to
be sent (`request`, `respond`, `refuse`, `message`, `abort`, `close`), and after each step takes out
`frames_to_send()` and `events()`. Faults of the peer never raise: they become answers, a close, or nothing,
as the specification says. Faults of our own raise to the caller.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from gateway.harness_api.closing import Close
from gateway.harness_api.events import (
    CallFailed,
    CallSucceeded,
    ChannelClosed,
    Event,
    MessageArrived,
    RequestArrived,
    RequestGivenUp,
)
from protocol import frames, methods
from protocol.closing import INVALID_DATA, INVALID_FRAME, NORMAL, NOT_JSON, cut_reason
from protocol.errors import HarnessApiError
from protocol.jsjson import JsonError, JsonValue
from protocol.methods import MethodInvalid

ToSend: TypeAlias = str | Close

MAX_FRAME_BYTES: Final = 67_108_864
"""A message of either end: 64 MiB; the receiver of a larger one closes with 1009 (harness-api 1.1)."""

_MAX_UTF8_WIDTH: Final = 4
"""Bytes that one character takes at most."""

_EITHER_OR_RESULTS: Final = frozenset({"effect.intent", "effect.outcome", "lease.renew"})
"""Methods whose result is one of several structures: a result that is none of them is just invalid."""

_TOO_DEEP: Final = "the frame nests too deep"
_CLOSED: Final = "the Harness API connection is closed"
_GAVE_UP: Final = "the requester gave up"


class FrameTooLarge(HarnessApiError):
    """A frame of ours is larger than the peer accepts; it was not sent, the connection goes on."""

    def __init__(self, method: str) -> None:
        super().__init__("invalid", f"the {method} frame is larger than {MAX_FRAME_BYTES} bytes")


class Channel:
    """Numbers requests, matches answers, and checks everything in both directions."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._next_id = 1
        self._calls: dict[int, str] = {}
        self._serving: dict[int, str] = {}
        self._to_send: list[ToSend] = []
        self._events: list[Event] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """Nothing is sent or handled any more."""
        return self._closed

    def frames_to_send(self) -> list[ToSend]:
        """What must be written next, in order; taken out. A Close is always the last."""
        taken, self._to_send = self._to_send, []
        return taken

    def events(self) -> list[Event]:
        """What has happened, in order; taken out."""
        taken, self._events = self._events, []
        return taken

    # What arrives

    def receive_text(self, text: str) -> None:
        """One WebSocket text message."""
        if self._closed:
            return
        try:
            frame = frames.decode_frame(text)
        except JsonError:
            self.close(INVALID_DATA, NOT_JSON)
            return
        except frames.FrameInvalid as fault:
            if fault.id is None:
                self.close(NORMAL, INVALID_FRAME + fault.reason)
            else:
                self._to_send.append(frames.encode_refusal(fault.id, "invalid", fault.reason))
            return
        self._handle(frame)

    def receive_binary(self) -> None:
        """One WebSocket binary message, whatever it holds."""
        self.close(INVALID_DATA, NOT_JSON)

    def receive_close(self) -> None:
        """The connection is gone, by whichever end."""
        self._end()

    def _handle(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Answer():
                self._answered(frame)
            case frames.Refusal():
                if self._calls.pop(frame.id, None) is not None:
                    self._events.append(CallFailed(frame.id, HarnessApiError(frame.code, frame.message)))
            case frames.Request():
                self._requested(frame)
            case frames.Message():
                self._told(frame)
            case frames.AbortFrame():
                if frame.id in self._serving:
                    self._events.append(RequestGivenUp(frame.id, HarnessApiError("unavailable", _GAVE_UP)))
            case frames.Ping():
                pass
            case frames.TooDeep():
                self._too_deep(frame)

    def _answered(self, frame: frames.Answer) -> None:
        method = self._calls.pop(frame.id, None)
        if method is None:
            return
        try:
            result = methods.check_result(method, frame.r, newer_core=True)
        except MethodInvalid as fault:
            # The text becomes part of an effect's failure, so it is the peers' own where that is fixed.
            reason = "Invalid input" if method in _EITHER_OR_RESULTS else str(fault)
            error = HarnessApiError("invalid", f"Invalid {method} answer: {reason}")
            self._events.append(CallFailed(frame.id, error))
        else:
            self._events.append(CallSucceeded(frame.id, result, frame.plain))

    def _requested(self, frame: frames.Request) -> None:
        try:
            params = methods.check_params(frame.m, frame.p)
        except MethodInvalid as fault:
            self._to_send.append(frames.encode_refusal(frame.id, "invalid", str(fault)))
            return
        self._serving[frame.id] = frame.m
        self._events.append(RequestArrived(frame.id, frame.m, params, frame.plain))

    def _told(self, frame: frames.Message) -> None:
        try:
            params = methods.check_message(frame.m, frame.p)
        except MethodInvalid:
            return
        self._events.append(MessageArrived(frame.m, params, frame.plain))

    def _too_deep(self, frame: frames.TooDeep) -> None:
        if frame.id is None:
            return
        if frame.t == "req":
            self._to_send.append(frames.encode_refusal(frame.id, "invalid", _TOO_DEEP))
        elif self._calls.pop(frame.id, None) is not None:
            self._events.append(CallFailed(frame.id, HarnessApiError("invalid", _TOO_DEEP)))

    # What is sent

    def request(self, method: str, params: JsonValue, *, plain: bool = False) -> int:
        """Asks the peer; the call's number, under which its end comes as an event.

        Raises HarnessApiError, and sends nothing and uses no number, when the channel is closed
        (`unavailable`), the params are not the method's (`invalid`) or the frame is too large
        (FrameTooLarge). `plain` as for `jsjson.dumps`, over all of the params.
        """
        self._require_open()
        _check_params(method, params)
        call_id = self._next_id
        text = frames.encode_request(call_id, method, params, plain=plain)
        if self._too_large(text):
            raise FrameTooLarge(method)
        self._next_id += 1
        self._calls[call_id] = method
        self._to_send.append(text)
        return call_id

    def abort(self, call_id: int) -> bool:
        """Gives a pending call up: it is forgotten, and a later answer is ignored. False: it had ended.

        No event follows; the caller fails the call with its own reason.
        """
        if self._calls.pop(call_id, None) is None:
            return False
        self._to_send.append(frames.encode_abort(call_id))
        return True

    def message(self, method: str, params: JsonValue, *, plain: bool = False) -> None:
        """Tells the peer something. Raises HarnessApiError `invalid`; dropped on a closed channel."""
        try:
            methods.check_message(method, params)
        except MethodInvalid as fault:
            raise HarnessApiError("invalid", str(fault)) from None
        if self._closed:
            return
        text = frames.encode_message(method, params, plain=plain)
        if self._too_large(text):
            raise FrameTooLarge(method)
        self._to_send.append(text)

    def respond(self, request_id: int, result: JsonValue, *, plain: bool = False) -> None:
        """Answers the peer's request; with `invalid` when the result is not the method's."""
        method = self._serving.pop(request_id, None)
        if method is None:
            return
        try:
            methods.check_result(method, result)
        except MethodInvalid as fault:
            self._refuse(
                request_id, HarnessApiError("invalid", f"the result of {method} is invalid: {fault}")
            )
            return
        text = frames.encode_answer(request_id, result, plain=plain)
        if self._too_large(text):
            self._refuse(request_id, FrameTooLarge(method))
        else:
            self._to_send.append(text)

    def refuse(self, request_id: int, error: HarnessApiError) -> None:
        """Refuses the peer's request."""
        if self._serving.pop(request_id, None) is not None:
            self._refuse(request_id, error)

    def _refuse(self, request_id: int, error: HarnessApiError) -> None:
        self._to_send.append(frames.encode_refusal(request_id, error.code, error.message))

    def close(self, code: int, reason: str) -> None:
        """Closes from this end: sends the close frame after what is waiting, and ends the channel."""
        if self._closed:
            return
        self._to_send.append(Close(code, cut_reason(reason)))
        self._end()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        failed, self._calls = tuple(self._calls), {}
        given_up, self._serving = tuple(self._serving), {}
        self._events.append(ChannelClosed(HarnessApiError("unavailable", _CLOSED), failed, given_up))

    def _require_open(self) -> None:
        if self._closed:
            raise HarnessApiError("unavailable", _CLOSED)

    def _too_large(self, text: str) -> bool:
        if len(text) * _MAX_UTF8_WIDTH <= self._max_frame_bytes:
            return False
        size = len(text) if text.isascii() else len(text.encode())
        return size > self._max_frame_bytes


def _check_params(method: str, params: JsonValue) -> None:
    try:
        methods.check_params(method, params)
    except MethodInvalid as fault:
        raise HarnessApiError("invalid", str(fault)) from None
