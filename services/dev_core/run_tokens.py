"""Run tokens: what a run says of itself to a gate, signed by this core (model-executor 7).

A token is a JWT (ES256) for one session, turn, root agent and lease epoch. Whoever has the core's public key
can check it; whether its lease lives is a question to the core.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from jwt.algorithms import ECAlgorithm

from services.common.process import StartFailed
from services.dev_core.clock import iso_time, now_ms
from services.dev_core.effects.held import HeldRun
from services.dev_core.harness.claims import TENANT_ID
from services.dev_core.store import signing_keys
from services.dev_core.store.database import Store

TYPE: Final = "nylorun-run+jwt"
AUDIENCE: Final = "nylorun-gates"
LIFE_MS: Final = 15 * 60 * 1000
"""A token's life; a new one is made when less than a third of it remains."""
_ALGORITHM: Final = "ES256"


@dataclass(frozen=True, slots=True)
class RunToken:
    """A token (never shown) and when it ends, in milliseconds since the epoch."""

    text: str = field(repr=False)
    expires_ms: int

    def members(self) -> dict[str, str]:
        """What a grant, or the answer to a renewal, says of it."""
        return {"token": self.text, "tokenExpiresAt": iso_time(self.expires_ms)}


class RunTokens:
    """Makes tokens with one key. `clock` gives milliseconds since the epoch."""

    def __init__(
        self,
        kid: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        life_ms: int = LIFE_MS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._kid = kid
        self._key = key
        self._life_ms = life_ms
        self._clock = clock

    def mint(self, run: HeldRun) -> RunToken:
        """A fresh token of a run."""
        now = self._clock()
        # Seconds, as JWTs have them: the end is rounded down, so it is never later than it is said to be.
        expires_s = (now + self._life_ms) // 1000
        claims = {
            "iss": TENANT_ID,
            "aud": AUDIENCE,
            "sub": run.session_id,
            "trn": run.turn_id,
            "agt": run.agent_id,
            "epc": run.epoch,
            "iat": now // 1000,
            "exp": expires_s,
            "jti": secrets.token_hex(16),
        }
        text = jwt.encode(claims, self._key, _ALGORITHM, headers={"typ": TYPE, "kid": self._kid})
        return RunToken(text, expires_s * 1000)

    def current(self, run: HeldRun, held: RunToken) -> RunToken:
        """The token that a run has, or a fresh one in its place when its end is near."""
        return held if held.expires_ms - self._clock() >= self._life_ms // 3 else self.mint(run)

    def public_keys(self) -> dict[str, Any]:
        """The public key as a JSON Web Key Set."""
        key: dict[str, Any] = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": self._kid, "use": "sig", "alg": _ALGORITHM}]}


async def open_run_tokens(store: Store, life_ms: int) -> RunTokens:
    """The tokens of a core: with the key of its database, made the first time.

    Raises StartFailed when the key in the database can't be read.
    """
    found = await store.write(signing_keys.newest)
    if found is None:
        kid, pem = _new_key()
        found = await store.write(partial(signing_keys.keep, kid=kid, pem=pem, now_ms=now_ms()))
    kid, pem = found
    try:
        key = load_pem_private_key(pem.encode(), None)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StartFailed("The key of run tokens in the core's database can't be read.")
    return RunTokens(kid, key, life_ms=life_ms)


def _new_key() -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return hashlib.sha256(public).hexdigest()[:16], pem.decode()
