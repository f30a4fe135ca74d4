"""The gate's HTTP client: one fresh connection a call, nothing followed, nothing retried (model-executor 5)."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from typing import Final

import aiohttp
from yarl import URL

from protocol.jsjson import dumps
from services.model_executor.gate.answers import GateAnswer, lost, read_answer, silent, unreachable
from services.model_executor.gate.body import SentBody
from services.model_executor.routes import ModelCall

PATH: Final = "/nylorun/v1/model-calls"
SILENCE_MS: Final = 630_000
"""No byte for so long is a failure: above the gate's provider timeout, below its own for requests."""
CANCEL_S: Final = 2.0
_COMPONENT: Final = "-_.!~*'()"
_OWN_HEADERS: Final = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class GateClient:
    """Calls and cancels at one gates service. `url` is any URL of it: only its origin counts."""

    def __init__(self, url: str, *, silence_s: float = SILENCE_MS / 1000) -> None:
        self.origin = str(URL(url).origin())
        self._silence_s = silence_s
        self._made: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            self._made = aiohttp.ClientSession(
                # A kept connection that went stale would be a recorded failure.
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._silence_s, sock_read=self._silence_s
                ),
                skip_auto_headers=_OWN_HEADERS,
            )
        return self._made

    async def call(self, call: ModelCall, token: str) -> GateAnswer:
        """One attempt. Cancelling it closes the connection; the gate goes on with the call."""
        body = _document(call)
        loop = asyncio.get_running_loop()
        bound: asyncio.Timeout | None = None

        def progress(all_of_it: bool) -> None:
            # From here on the socket's own read timeout watches.
            with contextlib.suppress(RuntimeError):
                if bound is not None:
                    bound.reschedule(None if all_of_it else loop.time() + self._silence_s)

        sent = SentBody(body, progress)
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Nylorun-Tenant": call.tenant_id,
            "Idempotency-Key": call.effect_id,
        }
        try:
            async with asyncio.timeout(self._silence_s) as bound:
                async with self._session().post(
                    URL(self.origin + PATH, encoded=True), data=sent, headers=headers, allow_redirects=False
                ) as response:
                    return read_answer(response.status, await response.read())
        except TimeoutError:
            return silent(self._silence_s, handed_over=sent.handed_over)
        except aiohttp.ClientConnectorError:
            return unreachable(self.origin)
        except aiohttp.ClientPayloadError:
            return lost()
        except (aiohttp.ClientError, OSError, ValueError):
            return lost() if sent.handed_over else unreachable(self.origin)

    async def cancel(self, tenant_id: str, effect_id: str, token: str) -> None:
        """Asks the gate to stop a call. Never fails; at most 2 s."""
        path = f"{PATH}/{urllib.parse.quote(effect_id, safe=_COMPONENT)}/cancel"
        headers = {"Authorization": f"Bearer {token}", "Nylorun-Tenant": tenant_id, "Content-Length": "0"}
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            async with asyncio.timeout(CANCEL_S):
                async with self._session().post(
                    URL(self.origin + path, encoded=True), headers=headers, allow_redirects=False
                ) as response:
                    await response.read()

    async def close(self) -> None:
        """Closes what is open."""
        if self._made is not None:
            await self._made.close()


def _document(call: ModelCall) -> bytes:
    """The body: three members, the call as it came."""
    head = f'{{"effectId":{dumps(call.effect_id)},"invocationId":{dumps(call.invocation_id)},"call":'
    return b"".join((head.encode(), call.text.encode("utf-8", "replace"), b"}"))
