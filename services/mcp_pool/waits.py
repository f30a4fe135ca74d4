"""Waiting for something that others share, within the abort of one call."""

from __future__ import annotations

import asyncio
from typing import Any

from services.mcp_pool.connection import Abort
from services.mcp_pool.failures import RequestAborted


async def until_done(awaited: asyncio.Future[Any], abort: Abort, stops: frozenset[int]) -> None:
    """Waits until `awaited` is done, whatever it came to; it goes on when we are cancelled.

    Raises RequestAborted when an abort of a kind in `stops` comes first.
    """
    if awaited.done():
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_: object) -> None:
        if not over.done():
            over.set_result(None)

    def aborted(kind: int) -> None:
        if kind in stops and not over.done():
            over.set_exception(RequestAborted(kind))

    awaited.add_done_callback(done)
    abort.listen(aborted)
    try:
        await over
    finally:
        awaited.remove_done_callback(done)
        if not over.cancel() and not over.cancelled():
            over.exception()  # an abort that came at the same moment as ours
