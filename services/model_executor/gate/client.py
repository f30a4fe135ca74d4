"""The gate's model route over HTTP (model-executor 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.jsjson import dumps
from services.common.gate_http import (
    SILENCE_MS,
    GateHttp,
    GateLost,
    GateSilent,
    GateUnreachable,
    component,
)
from services.model_executor.gate.answers import GateAnswer, lost, read_answer, silent, unreachable
from services.model_executor.routes import ModelCall

PATH: Final = "/nylorun/v1/model-calls"


@dataclass(frozen=True, slots=True)
class GateCall:
    """A call as the gate gets it. Its body is all that is kept of the document while it runs."""

    tenant_id: str
    session_id: str
    effect_id: str
    body: bytes
    token: str | None

    def __repr__(self) -> str:
        """Neither token nor content."""
        return f"GateCall({self.session_id!r}, {self.effect_id!r})"


def gate_call(call: ModelCall) -> GateCall:
    """Writes a call's body: three members, the document as it came."""
    head = f'{{"effectId":{dumps(call.effect_id)},"invocationId":{dumps(call.invocation_id)},"call":'
    body = b"".join((head.encode(), call.text.encode("utf-8", "replace"), b"}"))
    return GateCall(call.tenant_id, call.session_id, call.effect_id, body, call.token)


class GateClient:
    """Calls and cancels at one gates service. `url` is any URL of it: only its origin counts."""

    def __init__(self, url: str, *, silence_s: float = SILENCE_MS / 1000) -> None:
        self._http = GateHttp(url, silence_s=silence_s)

    async def call(self, call: GateCall, token: str) -> GateAnswer:
        """One attempt. Cancelling it closes the connection; the gate goes on with the call."""
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Nylorun-Tenant": call.tenant_id,
            "Idempotency-Key": call.effect_id,
        }
        try:
            answered = await self._http.post(PATH, call.body, headers)
        except GateSilent as error:
            return silent(self._http.silence_s, handed_over=error.handed_over)
        except GateUnreachable:
            return unreachable(self._http.origin)
        except GateLost:
            return lost()
        return read_answer(answered.status, answered.body, token)

    async def cancel(self, tenant_id: str, effect_id: str, token: str) -> None:
        """Asks the gate to stop a call. Never fails; at most 2 s."""
        headers = {"Authorization": f"Bearer {token}", "Nylorun-Tenant": tenant_id}
        await self._http.tell(f"{PATH}/{component(effect_id)}/cancel", headers)

    async def close(self) -> None:
        """Closes what is open."""
        await self._http.close()
