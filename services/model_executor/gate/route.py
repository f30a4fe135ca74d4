"""The gate route: what is sent again, what is kept, which token goes along (model-executor 4 to 7 and 14)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from services.common.logs import get_logger
from services.model_executor.gate.answers import GateAnswer, Kind, lost, no_token
from services.model_executor.gate.client import GateCall, GateClient, gate_call
from services.model_executor.routes import ModelCall, Pending, Settled

LIMIT_MS: Final = 3_600_000
"""A call at the gate has ended by then: silence ends it much earlier, and the gate gives up after 660 s."""


@dataclass(slots=True)
class _Session:
    """The newest run token of a session, kept while calls of it are in flight."""

    token: str | None
    calls: int = 0


class GateRoute:
    """Calls the gates service. The service joins calls by their effect id, so they may be sent again.

    `rejoins` is how often a call whose answer was lost is sent again under its id (14.2); with `renews`, a
    call whose token was refused is sent once more when a newer one has come (14.3).
    """

    name = "gate"
    recovers = True
    limit_ms = LIMIT_MS

    def __init__(self, client: GateClient, *, rejoins: int = 0, renews: bool = False) -> None:
        self._client = client
        self._rejoins = rejoins
        self._renews = renews
        self._sessions: dict[tuple[str, str], _Session] = {}

    def answer(self, call: ModelCall) -> Pending:
        """The call's work. It ends with the last who waits for it: the gate keeps the call."""
        asked = gate_call(call)
        return Pending(lambda: self._call(asked), with_callers=True)

    def renew(self, tenant_id: str, session_id: str, token: str | None) -> bool:
        """Takes a session's newest token while a call of it is in flight; False when none is."""
        session = self._sessions.get((tenant_id, session_id))
        if session is None:
            return False
        if token is not None:
            session.token = token
        return True

    async def cancel(self, tenant_id: str, effect_id: str, token: str | None) -> None:
        """Asks the gate to stop a call; nothing without a token. Never fails; at most 2 s."""
        if token is not None:
            await self._client.cancel(tenant_id, effect_id, token)

    async def close(self) -> None:
        """Closes connections."""
        await self._client.close()

    async def _call(self, call: GateCall) -> Settled:
        key = (call.tenant_id, call.session_id)
        session = self._sessions.setdefault(key, _Session(None))
        session.calls += 1
        if call.token is not None:
            session.token = call.token
        try:
            async with asyncio.timeout(LIMIT_MS / 1000):
                answer = await self._attempts(call, session)
        except TimeoutError:
            answer = lost()
        finally:
            session.calls -= 1
            if session.calls == 0:
                del self._sessions[key]
        return Settled(answer.outcome, keep=answer.kind is Kind.OUTCOME)

    async def _attempts(self, call: GateCall, session: _Session) -> GateAnswer:
        token = call.token
        if token is None:
            return no_token()
        rejoins, renewed = self._rejoins, False
        while True:
            answer = await self._client.call(call, token)
            if answer.kind is Kind.LOST and rejoins > 0:
                rejoins -= 1
            elif (
                answer.kind is Kind.REFUSED_TOKEN
                and self._renews
                and not renewed
                and session.token is not None
                and session.token != token
            ):
                renewed = True
            else:
                return answer
            token = session.token or token
            get_logger().warning(
                "gate_call_sent_again",
                sessionId=call.session_id,
                effectId=call.effect_id,
                reason=answer.kind.value,
            )
