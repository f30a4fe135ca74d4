"""Run tokens: who asks, for which session, under which lease (model-executor 7, mcp-pool 9.1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK

from protocol.jsjson import JsonError, JsonValue, loads
from services.common.logs import get_logger
from services.tool_gate.problems import unauthorized, unavailable

TYPE: Final = "nylorun-run+jwt"
AUDIENCE: Final = "nylorun-gates"
ALGORITHM: Final = "ES256"
MAX_TOKEN: Final = 4096
MAX_KEYS_BYTES: Final = 1024 * 1024
REFRESH_S: Final = 5.0
"""A key that is not known makes the gate ask the core again, but not more often than this."""
FETCH_S: Final = 5.0

Keys = Mapping[str | None, ec.EllipticCurvePublicKey]
"""Public keys by id. A key of a PEM file has none and stands for every id."""


class KeysInvalid(ValueError):
    """No key can be read; one line that says why."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a valid token says."""

    session_id: str
    epoch: int
    issuer: str | None = None
    token_id: str | None = None


class KeySource(Protocol):
    """Where public keys come from."""

    async def key(self, kid: str | None) -> ec.EllipticCurvePublicKey | None:
        """The key of an id; None when there is none. Raises GateProblem when it can't be asked for."""
        ...


class FileKeys:
    """Keys that were read once."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def key(self, kid: str | None) -> ec.EllipticCurvePublicKey | None:
        """See KeySource."""
        return self._keys.get(kid) or self._keys.get(None)


class UrlKeys:
    """Keys of a core, asked for when a token names one that is not known. `clock` gives seconds."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._http = http
        self._url = url
        self._clock = clock
        self._keys: Keys = {}
        self._asked: float | None = None
        self._asking = asyncio.Lock()

    async def key(self, kid: str | None) -> ec.EllipticCurvePublicKey | None:
        """See KeySource."""
        found = self._keys.get(kid)
        if found is None:
            async with self._asking:
                found = self._keys.get(kid)
                if found is None and (self._asked is None or self._clock() - self._asked >= REFRESH_S):
                    self._keys = await self._ask()
                    self._asked = self._clock()
                    found = self._keys.get(kid)
        return found

    async def _ask(self) -> Keys:
        try:
            async with asyncio.timeout(FETCH_S):
                async with self._http.get(self._url, allow_redirects=False) as answer:
                    body = await answer.content.read(MAX_KEYS_BYTES)
                    if answer.status != 200:
                        raise KeysInvalid(f"status {answer.status}")
                    return keys_of_set(body)
        except (aiohttp.ClientError, OSError, KeysInvalid) as error:
            get_logger().warning("gate_keys_unavailable", reason=type(error).__name__)
            raise unavailable(
                "The core's public key can't be read, so no run token can be checked."
            ) from None


def read_key_file(path: str) -> Keys:
    """The keys of a file: a JSON Web Key Set, or a public key in PEM. Raises KeysInvalid."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_KEYS_BYTES)
    except OSError as error:
        raise KeysInvalid(f"{path} can't be read: {error.strerror or type(error).__name__}") from None
    if content.lstrip().startswith(b"{"):
        return keys_of_set(content)
    try:
        key = load_pem_public_key(content)
    except ValueError:
        raise KeysInvalid(f"{path} is neither a JSON Web Key Set nor a public key in PEM") from None
    if not _fits(key):
        raise KeysInvalid(f"{path} is no public key for {ALGORITHM} (P-256)")
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return {None: key}


def keys_of_set(content: bytes) -> Keys:
    """The keys of a JSON Web Key Set that can check run tokens; others are left out. Raises KeysInvalid."""
    try:
        document = loads(content)
    except (JsonError, UnicodeDecodeError):
        document = None
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise KeysInvalid("it is not a JSON Web Key Set")
    keys: dict[str | None, ec.EllipticCurvePublicKey] = {}
    for member in members:
        key, kid = _key_of(member)
        if key is not None:
            keys[kid] = key
    if not keys:
        raise KeysInvalid(f"the JSON Web Key Set has no key for {ALGORITHM}")
    return keys


def _key_of(member: JsonValue) -> tuple[ec.EllipticCurvePublicKey | None, str | None]:
    if not isinstance(member, dict) or member.get("kty") != "EC" or member.get("crv") != "P-256":
        return None, None
    kid = member.get("kid")
    try:
        key: Any = PyJWK(member, ALGORITHM).key
    except jwt.PyJWTError:
        return None, None
    return (key if _fits(key) else None), kid if isinstance(kid, str) else None


def _fits(key: object) -> bool:
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


class RunTokens:
    """Checks tokens. Raises GateProblem `gate_unauthorized` for everything that is no valid one."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    async def grant(self, authorization: str | None) -> Grant:
        """What the token of an Authorization header says."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
            raise unauthorized("A run token is required: Authorization: Bearer <token>.")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise unauthorized("The run token is malformed.") from None
        kid = header.get("kid")
        if header.get("typ") != TYPE or header.get("alg") != ALGORITHM:
            raise unauthorized("The token is no run token.")
        key = await self._keys.key(kid if isinstance(kid, str) else None)
        if key is None:
            raise unauthorized("The run token was not signed by this gate's core.")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                options={"require": ["exp", "sub", "epc"]},
            )
        except jwt.ExpiredSignatureError:
            raise unauthorized("The run token has expired.") from None
        except jwt.PyJWTError:
            raise unauthorized("The run token is not valid.") from None
        return _grant(claims)


def _grant(claims: Mapping[str, Any]) -> Grant:
    session, epoch, issuer = claims.get("sub"), claims.get("epc"), claims.get("iss")
    if not isinstance(session, str) or not session or isinstance(epoch, bool) or not isinstance(epoch, int):
        raise unauthorized("The run token names no session or no epoch.")
    token_id = claims.get("jti")
    return Grant(
        session,
        epoch,
        issuer if isinstance(issuer, str) else None,
        token_id if isinstance(token_id, str) else None,
    )
