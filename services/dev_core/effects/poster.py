"""Posts Actions to agents' endpoints: each at most once in its life, functions of flows a few times."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from protocol import jsjson
from protocol.jsjson import JsonDepthError, JsonError
from services.common.logs import error_text, get_logger
from services.dev_core.clock import now_ms
from services.dev_core.effects.actions import (
    Accepted,
    Delivered,
    Delivery,
    Order,
    Rejected,
    Resolved,
    Unknown,
    deliver,
    lose_sent,
    mark_sent,
    read_outcome,
)
from services.dev_core.given import MAX_GIVEN_DEPTH, read_given
from services.dev_core.problems import Problem
from services.dev_core.store.database import Store
from services.dev_core.store.transaction import StoreFailed

MAX_POSTS_AT_ONCE: Final = 128
"""Requests in flight; further Actions wait, still `new`."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_REASON_CHARS: Final = 500
"""Of an endpoint's own words about a refusal; a model reads them."""
_HEADER_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_STOP_GRACE_S: Final = 3.0
"""How long requests in flight may still be answered when the core stops."""


class ActionPoster:
    """Owns the requests in flight. `on_resolved` is told what each answer changed, after its commit.

    `repeat_pauses_s`: before a function is posted for the second time, the third, and so on.
    """

    def __init__(
        self,
        store: Store,
        timeout_ms: int,
        on_resolved: Callable[[str, str, Resolved], None],
        *,
        repeat_pauses_s: Sequence[float],
    ) -> None:
        self._store = store
        self._pauses = repeat_pauses_s
        self._repeats: set[asyncio.TimerHandle] = set()
        self._timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        self._on_resolved = on_resolved
        self._slots = asyncio.Semaphore(MAX_POSTS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: aiohttp.ClientSession | None = None
        self._stopping = False

    async def start(self) -> None:
        """Settles what an earlier process left: Actions that were sent are uncertain, new ones are posted."""
        # The slots bound what is in flight; an Action that is marked sent must not queue once more.
        self._client = aiohttp.ClientSession(
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        for session_id, effect_id in await self._store.write(partial(lose_sent, now_ms=now_ms())):
            self.post(session_id, effect_id)

    def post(self, session_id: str, effect_id: str) -> None:
        """Posts a new Action as soon as there is a slot."""
        if self._stopping:
            return
        task = asyncio.get_running_loop().create_task(self._run(session_id, effect_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Waits a little for answers in flight; what is left is uncertain at the next start."""
        self._stopping = True
        for timer in self._repeats:
            timer.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_STOP_GRACE_S)
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _run(self, session_id: str, effect_id: str) -> None:
        async with self._slots:
            if self._stopping:
                return
            try:
                order = await self._store.write(
                    partial(mark_sent, session_id=session_id, effect_id=effect_id, now_ms=now_ms())
                )
                if order is None:
                    return
                delivery = await self._deliver(order)
                resolved = await self._store.write(
                    partial(deliver, order=order, delivery=delivery, now_ms=now_ms())
                )
            except StoreFailed as error:
                # It stays `new` or `sent`, and the next start settles it.
                get_logger().error("action_not_recorded", sessionId=session_id, error=error_text(error))
                return
        if resolved.repeat:
            self._post_later(session_id, effect_id, self._pauses[resolved.repeat - 1])
        self._on_resolved(session_id, effect_id, resolved)

    def _post_later(self, session_id: str, effect_id: str, pause_s: float) -> None:
        def post() -> None:
            self._repeats.discard(timer)
            self.post(session_id, effect_id)

        timer = asyncio.get_running_loop().call_later(pause_s, post)
        self._repeats.add(timer)

    async def _deliver(self, order: Order) -> Delivery:
        assert self._client is not None
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key(order.effect_id)}
        try:
            async with self._client.post(
                order.url, data=io.BytesIO(order.request.encode()), headers=headers, allow_redirects=False
            ) as response:
                if response.status == 202:
                    return Accepted()
                body = await _read(response)
                return _understand(response.status, body)
        except TimeoutError:
            return Unknown("The Action endpoint did not answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Unknown(f"The Action endpoint gave no answer ({type(error).__name__})")


def idempotency_key(effect_id: str) -> str:
    """The effect's id as a header carries it: what is not printable ASCII is percent-encoded UTF-8."""
    return quote(effect_id, safe=_HEADER_SAFE)


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The answer's body, None when it is larger than it may be."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _understand(status: int, body: bytes | None) -> Delivery:
    if status == 200:
        if body is None:
            return Unknown(f"The Action endpoint's answer is larger than {MAX_ANSWER_BYTES} bytes")
        try:
            return Delivered(read_outcome(read_given(body)))
        except JsonDepthError:
            return Unknown(f"The Action endpoint's answer nests deeper than {MAX_GIVEN_DEPTH} levels")
        except (JsonError, Problem):
            return Unknown("The Action endpoint answered 200 without an outcome {value, statePatch?}")
    if 400 <= status < 500:
        return Rejected(_reason(status, body))
    return Unknown(f"The Action endpoint answered {status}")


def _reason(status: int, body: bytes | None) -> str:
    text = f"The Action endpoint answered {status}"
    try:
        document: Any = jsjson.loads(body or b"")
    except JsonError:
        return text
    error = document.get("error", document) if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return f"{text}: {message[:MAX_REASON_CHARS]}" if isinstance(message, str) and message else text
