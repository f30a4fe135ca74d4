"""Core's join and renew endpoints over real HTTP, with their limits and refusals (pod-mode 4.2)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from tests.doubles.http import HttpDouble, Request, Wire

BASE = "/nylorun/harness/v1/host/"
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass
class PodHostDouble(HttpDouble):
    """`answers` are statuses to give instead, the next one first; `raw` are bodies of a 200."""

    join_token: str = "join-1"
    pod_uid: str = "pod-1"
    volume: str | None = None
    epoch: int = 0
    count: int = 0
    live: str = ""
    answers: list[int] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    async def serve(self, request: Request, wire: Wire) -> None:
        if request.method != "POST":
            return await wire.answer(405)
        if request.headers.get("host") != f"127.0.0.1:{self.port}":
            return await wire.answer(421)
        if self.answers:
            status = self.answers.pop(0)
            return await wire.answer(status, b'{"error":{"code":"unavailable","message":"x"}}')
        if self.raw:
            return await wire.answer(200, self.raw.pop(0))
        if request.target == BASE + "join":
            return await self._join(request, wire)
        if request.headers.get("authorization") != f"Bearer {self.live}" or not self.live:
            return await self._unauthorized(wire)
        await self._give(wire)

    async def _join(self, request: Request, wire: Wire) -> None:
        try:
            body = json.loads(request.body) if len(request.body) <= 8192 else {}
            ids = [body["podUid"], body.get("volumeId", "none")]
            valid = all(_ID.fullmatch(one) for one in ids) and 1 <= len(body["joinToken"]) <= 512
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            return await wire.answer(400, b'{"error":{"code":"invalid","message":"x"}}')
        self.volume = self.volume or body.get("volumeId")
        known = (self.join_token, self.pod_uid, self.volume)
        if (body["joinToken"], body["podUid"], body.get("volumeId")) != known:
            return await self._unauthorized(wire)
        self.epoch += 1
        await self._give(wire)

    async def _give(self, wire: Wire) -> None:
        self.count += 1
        self.live = f"host-{self.count}"
        pair = {"hostToken": self.live, "egressToken": f"egress-{self.count}", "sandboxId": "sbx", "extra": 1}
        pair |= {"epoch": self.epoch, "expiresAt": "2030-01-01T00:00:00.000Z", "caCertificate": "x"}
        await wire.answer(200, json.dumps(pair).encode())

    async def _unauthorized(self, wire: Wire) -> None:
        body = b'{"error":{"code":"unauthorized","message":"x"}}'
        await wire.answer(401, body, {"www-authenticate": "Bearer"})
