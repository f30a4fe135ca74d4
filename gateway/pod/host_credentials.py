"""Holds a pod sandbox's host and egress tokens: joins, renews, forgets (pod-mode 4)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from gateway.pod.volume import volume_id
from gateway.websocket import DialFailed
from protocol import jsonread
from services.common.logs import get_logger

CALL_LIMIT_S: Final = 15.0
RENEW_EVERY_S: Final = 300.0
MAX_ANSWER_BYTES: Final = 64 * 1024
_REFUSED: Final = (400, 401)


class HostPair(msgspec.Struct, frozen=True, rename="camel"):
    """What core answers to a join or a renewal; other fields are ignored."""

    host_token: str
    egress_token: str
    sandbox_id: str
    epoch: int
    expires_at: str

    def __repr__(self) -> str:
        return f"HostPair(sandbox_id={self.sandbox_id!r}, epoch={self.epoch})"


class _Refused(DialFailed):
    """Core says that these credentials are not good."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Who joins, and where: `origin` is core's HTTP origin."""

    origin: str
    sandbox_id: str
    pod_uid: str
    join_file: Path
    volume_file: Path


@dataclass(slots=True)
class HostCredentials:
    """Gives the bearer for each dial. `token` and `renew` never overlap."""

    identity: PodIdentity
    call_limit_s: float = CALL_LIMIT_S
    held: HostPair | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def token(self) -> str:
        """The host token of a renewal, or of a join when none is held or the renewal is refused.

        Raises DialFailed; what is held stays when the renewal failed for another reason.
        """
        async with self._turn:
            if self.held is not None and (renewed := await self._renewed(self.held)) is not None:
                return renewed.host_token
            joined = self.held = await self._join()
            get_logger().info("sandbox_host_joined", sandboxId=joined.sandbox_id, epoch=joined.epoch)
            return joined.host_token

    async def renew(self) -> None:
        """What the timer does: renews what is held, never joins, never fails."""
        async with self._turn:
            if self.held is None:
                return
            try:
                await self._renewed(self.held)
            except DialFailed as failed:
                get_logger().warning("sandbox_host_renew_failed", message=str(failed))

    async def keep_renewing(self, every_s: float = RENEW_EVERY_S) -> None:
        """Renews until it is cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.renew()

    async def _renewed(self, held: HostPair) -> HostPair | None:
        try:
            self.held = await self._post("renew", {"authorization": f"Bearer {held.host_token}"}, None)
        except _Refused:
            get_logger().warning("sandbox_host_renew_refused", sandboxId=held.sandbox_id, epoch=held.epoch)
            self.held = None
        return self.held

    async def _join(self) -> HostPair:
        try:
            join_token = (await asyncio.to_thread(self.identity.join_file.read_text, "utf-8")).strip()
            volume = await asyncio.to_thread(volume_id, self.identity.volume_file)
        except OSError as error:
            raise DialFailed(f"can't join: {error.filename}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise DialFailed("can't join: the join token is no text") from None
        body = {
            "sandboxId": self.identity.sandbox_id,
            "podUid": self.identity.pod_uid,
            "joinToken": join_token,
            "volumeId": volume,
        }
        return await self._post("join", {"content-type": "application/json"}, json.dumps(body).encode())

    async def _post(self, name: str, headers: dict[str, str], body: bytes | None) -> HostPair:
        url = f"{self.identity.origin}/nylorun/harness/v1/host/{name}"
        limit = aiohttp.ClientTimeout(total=self.call_limit_s)
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=limit, trust_env=False, skip_auto_headers=("content-type",)
                ) as http,
                http.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status in _REFUSED:
                    raise _Refused(f"core refused host/{name} with {answer.status}")
                if not 200 <= answer.status < 300:
                    raise DialFailed(f"core answered host/{name} with {answer.status}")
                content = bytearray()
                async for piece in answer.content.iter_any():
                    content += piece
                    if len(content) > MAX_ANSWER_BYTES:
                        raise DialFailed(f"core's answer to host/{name} is too long")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise DialFailed(f"host/{name} failed: {type(error).__name__}") from None
        try:
            pair = msgspec.convert(jsonread.loads(bytes(content)), HostPair)
        except (jsonread.JsonError, UnicodeDecodeError, msgspec.ValidationError):
            raise DialFailed(f"core's answer to host/{name} can't be read") from None
        # A token that no header can carry would be held, and fail every renewal, for ever.
        if pair.epoch < 1 or not (pair.host_token.isascii() and pair.host_token.isprintable()):
            raise DialFailed(f"core's answer to host/{name} has no valid epoch or token")
        return pair
