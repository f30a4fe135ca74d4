"""The one place where exceptions of a handler become answers to the peer (operations 12.6).

`Refused` carries its status and a text made for the caller. Everything else that escapes a handler is
logged here and reaches the caller as INTERNAL with a fixed text: gRPC would send the exception's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from typing import Any, Final, NoReturn

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from services.common.logs import error_text, get_logger
from services.common.metadata import NOT_STARTED

FAULT_TEXT: Final = "The service failed on this call; its log says why."
UNIMPLEMENTED_TEXT: Final = "This service does not have this rpc."


class Refused(Exception):
    """A handler refuses its call: the status and the text cross, so the text must hold no secret.

    `not_started` promises that no work began: the caller may send the same call again.
    """

    def __init__(self, status: grpc.StatusCode, text: str, *, not_started: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.not_started = not_started


def invalid(text: str) -> Refused:
    """A request that is not valid: INVALID_ARGUMENT; nothing was started."""
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, text)


def unavailable(text: str) -> Refused:
    """Draining, not initialised or over a limit: UNAVAILABLE, and nothing was started."""
    return Refused(grpc.StatusCode.UNAVAILABLE, text, not_started=True)


async def not_started(context: Any, text: str) -> NoReturn:
    """Refuses a call before any work; it may be sent again, here or elsewhere. Always raises."""
    await abort(context, unavailable(text))


async def abort(context: Any, refused: Refused) -> NoReturn:
    """Ends a call with a refusal. Always raises gRPC's AbortError."""
    trailing = ((NOT_STARTED, "1"),) if refused.not_started else ()
    await context.abort(refused.status, refused.text, trailing_metadata=trailing)
    raise AssertionError("abort returned")  # pragma: no cover


async def answer_exception(context: Any, method: str, error: BaseException) -> None:
    """Turns what escaped a handler into the call's end; raises what gRPC itself must see."""
    if isinstance(error, asyncio.CancelledError | grpc.aio.BaseError):
        raise error
    if isinstance(error, Refused):
        await abort(context, error)
    if isinstance(error, NotImplementedError) and context.code() is grpc.StatusCode.UNIMPLEMENTED:
        # The generated base class: the rpc exists in the contract and not in this service.
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, UNIMPLEMENTED_TEXT)
    where = traceback.extract_tb(error.__traceback__)[-1:]
    get_logger().error(
        "rpc_failed",
        method=method,
        error=error_text(error),
        where=f"{where[0].filename}:{where[0].lineno}" if where else "",
    )
    with contextlib.suppress(grpc.aio.UsageError):  # the call has a status already
        await context.abort(grpc.StatusCode.INTERNAL, FAULT_TEXT)
