"""What comes out of a channel: a closed set of frozen values, in the order in which things happened."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from protocol.errors import HarnessApiError


class CallSucceeded(msgspec.Struct, frozen=True):
    """The peer answered one of our requests. `result` is the method's checked struct.

    `plain` says that free-form parts of the result may be written the fast way (`jsjson.Parsed`).
    """

    call_id: int
    result: Any
    plain: bool


class CallFailed(msgspec.Struct, frozen=True):
    """One of our requests failed: refused, or answered with something that is no result of its method."""

    call_id: int
    error: HarnessApiError


class RequestArrived(msgspec.Struct, frozen=True):
    """The peer asks. `params` is the method's checked struct; `respond` or `refuse` exactly once."""

    request_id: int
    method: str
    params: Any
    plain: bool


class RequestGivenUp(msgspec.Struct, frozen=True):
    """The peer no longer wants the answer; its work is to be stopped with this error."""

    request_id: int
    error: HarnessApiError


class MessageArrived(msgspec.Struct, frozen=True):
    """A one-way message with its checked struct."""

    method: str
    params: Any
    plain: bool


class ChannelClosed(msgspec.Struct, frozen=True):
    """The channel is closed; nothing comes after this.

    `failed_calls` fail with `error`, and so does the work on `given_up`. Whoever handles this marks every
    run aborted before anybody who waits for a failed call goes on (harness-api 2.3).
    """

    error: HarnessApiError
    failed_calls: tuple[int, ...]
    given_up: tuple[int, ...]


Event: TypeAlias = (
    CallSucceeded | CallFailed | RequestArrived | RequestGivenUp | MessageArrived | ChannelClosed
)
