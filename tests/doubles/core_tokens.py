"""Run tokens as a gate checks them: the signature by the core's public key, the lease by its session."""

from __future__ import annotations

from urllib.parse import quote

import aiohttp
import jwt

from tests.doubles.model_gate import Grant

TYPE = "nylorun-run+jwt"
AUDIENCE = "nylorun-gates"
CLAIMS = ["iss", "sub", "trn", "agt", "epc", "iat", "exp", "jti"]


class CoreTokens:
    """An `authority` of a gate double: asks a development core's HTTP API. Close it at the end.

    A token whose signature, audience, type or time is wrong gives nothing; one whose lease is over (session
    gone, other epoch, turn ended or cancelled) gives a grant that does not live. `knows_time` False: no token
    is too old, for tests that are about something else.
    """

    def __init__(self, core_url: str) -> None:
        self._url = core_url
        self._http = aiohttp.ClientSession()
        self._keys: dict[str, jwt.PyJWK] = {}
        self.claims: list[dict[str, object]] = []
        self.knows_time = True

    async def close(self) -> None:
        await self._http.close()

    async def __call__(self, token: str) -> Grant | None:
        claims = await self._claims(token)
        if claims is None:
            return None
        self.claims.append(claims)
        session, turn, epoch = claims["sub"], claims["trn"], claims["epc"]
        live = await self._lives(session, turn, epoch)
        return Grant(session, turn, claims["agt"], epoch, claims["iss"], live=live)

    async def _claims(self, token: str) -> dict[str, object] | None:
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(header.get("kid", ""))
            if key is None or header.get("typ") != TYPE:
                return None
            return jwt.decode(
                token,
                key,
                algorithms=["ES256"],
                audience=AUDIENCE,
                options={"verify_exp": self.knows_time, "require": CLAIMS},
            )
        except jwt.InvalidTokenError:
            return None

    async def _key(self, kid: str) -> jwt.PyJWK | None:
        if kid not in self._keys:
            async with self._http.get(f"{self._url}/.well-known/jwks.json") as answer:
                keys = jwt.PyJWKSet.from_dict(await answer.json())
            self._keys = {key.key_id: key for key in keys.keys}
        return self._keys.get(kid)

    async def _lives(self, session: str, turn: str, epoch: int) -> bool:
        async with self._http.get(f"{self._url}/v1/sessions/{quote(session, safe='')}") as answer:
            if answer.status != 200:
                return False
            view = await answer.json()
        return (view["epoch"], view["activeTurnId"], view["status"]) == (epoch, turn, "running")
