"""A session's requests to the Tool Gate (mcp-pool 9.2 and 9.3).

One HTTP request each and never a second one. The run token is read when a request is sent, so that a renewed
one goes along with the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonValue, Parsed, RawJson
from services.common.gate_http import (
    SILENCE_MS,
    GateAnswerTooLarge,
    GateHttp,
    GateLost,
    GateSilent,
    GateUnreachable,
    component,
)
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.failures import AnswerInvalid, ConnectionLost, McpFailure, RequestTimedOut
from services.mcp_pool.gate import wire
from services.mcp_pool.grants import Grants
from services.mcp_pool.limits import GATE_ANSWER_BYTES, PARSE_OFF_LOOP_BYTES
from services.mcp_pool.session import Session

_MAY_HAVE_RUN: Final = "what was asked may have been done."


@dataclass(frozen=True, slots=True)
class GateResult:
    """The `result` of an answer, `plain` as in Parsed, and the size of the whole answer in bytes."""

    value: JsonValue
    plain: bool
    size: int


class GateClient:
    """Requests to one gates service with the newest run tokens of `grants`.

    Every request but `close_server` and `cancel` raises an McpFailure: unreachable, ConnectionLost,
    RequestTimedOut (no byte for the silence limit), AnswerInvalid, a refusal, or the server's own failure.
    """

    def __init__(self, url: str, grants: Grants, *, silence_s: float = SILENCE_MS / 1000) -> None:
        self._http = GateHttp(url, silence_s=silence_s, max_answer_bytes=GATE_ANSWER_BYTES)
        self._grants = grants

    async def connect(self, session: Session, name: ServerName) -> None:
        """Has the gate open the server."""
        await self._server(wire.CONNECT, session, name)

    async def list_page(self, session: Session, name: ServerName, cursor: str | None) -> GateResult:
        """One page of `tools/list`."""
        members: dict[str, JsonValue] = {} if cursor is None else {"cursor": cursor}
        return await self._server(wire.LIST, session, name, **members)

    async def call(
        self, session: Session, name: ServerName, effect_id: str, tool: str, arguments: RawJson
    ) -> GateResult:
        """One tool call, keyed by the effect id: the gate runs it once, however often it is sent."""
        token = self._grants.token(session)
        body = wire.call_body(name, _unnamed(session, token), effect_id, tool, arguments)
        return await self._post(wire.CALLS, body, wire.headers(token, effect_id))

    async def close_server(self, session: Session, name: ServerName) -> None:
        """Tells the gate that nobody uses the server any more. Never fails; at most 2 s."""
        token = self._grants.token(session)
        body = wire.server_body(name, _unnamed(session, token))
        await self._http.tell(wire.CLOSE, wire.headers(token), body)

    async def cancel(self, session: Session, effect_id: str) -> None:
        """Has the gate stop a call. Never fails; at most 2 s."""
        headers = wire.headers(self._grants.token(session))
        await self._http.tell(f"{wire.CALLS}/{component(effect_id)}/cancel", headers)

    async def close(self) -> None:
        """Closes what is open."""
        await self._http.close()

    async def _server(
        self, path: str, session: Session, name: ServerName, **members: JsonValue
    ) -> GateResult:
        token = self._grants.token(session)
        body = wire.server_body(name, _unnamed(session, token), **members)
        return await self._post(path, body, wire.headers(token))

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> GateResult:
        try:
            answered = await self._http.post(path, body, headers)
        except GateUnreachable:
            raise McpFailure(f"The gates service is unreachable at {self._http.origin}.") from None
        except GateLost:
            raise ConnectionLost(
                f"The gates service was lost before its answer was complete: {_MAY_HAVE_RUN}"
            ) from None
        except GateSilent as silent:
            text = f"The gates service said nothing for {self._http.silence_s:g} s"
            if not silent.handed_over:
                raise McpFailure(f"{text} and did not take the request.") from None
            raise RequestTimedOut(f"{text}: {_MAY_HAVE_RUN}") from None
        except GateAnswerTooLarge:
            raise AnswerInvalid(
                f"The gates service's answer is larger than {GATE_ANSWER_BYTES} bytes."
            ) from None
        result = await _read(answered.status, answered.body)
        return GateResult(result.value, result.plain, len(answered.body))


async def _read(status: int, body: bytes) -> Parsed:
    if len(body) > PARSE_OFF_LOOP_BYTES:
        return await asyncio.to_thread(wire.read_result, status, body)
    return wire.read_result(status, body)


def _unnamed(session: Session, token: str | None) -> str | None:
    """The session's id where no token names it."""
    return session.session_id if token is None else None
