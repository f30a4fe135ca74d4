"""Run tokens of the development core: what they say, how long, and that one key signs them (model-executor 7)."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import jwt
import pytest

from services.common.process import StartFailed
from services.dev_core.effects.held import HeldRun
from services.dev_core.run_tokens import LIFE_MS, open_run_tokens
from services.dev_core.store.database import Store
from services.dev_core.store.opening import MEMORY
from tests.dev_core.support import BOUND_S, CoreClient, running_core

RUN = HeldRun("run", "ses_1", "t_1", 0, 3, "owner", "plain", "hash", -1)


async def keys_of(core: CoreClient) -> jwt.PyJWKSet:
    answer = await core.get("/.well-known/jwks.json")
    assert answer.status == 200
    return jwt.PyJWKSet.from_dict(answer.body)


def read(token: str, keys: jwt.PyJWKSet, **options: Any) -> dict[str, Any]:
    key = keys[jwt.get_unverified_header(token)["kid"]]
    return jwt.decode(token, key, algorithms=["ES256"], audience="nylorun-gates", **options)


async def leased(core: CoreClient) -> tuple[Any, str, Any]:
    await core.agent()
    session = await core.session()
    turn = await core.say(session)
    harness = await core.connect()
    return harness, turn, await harness.ask("lease", {})


async def test_a_grant_carries_a_token_of_its_session_turn_agent_and_epoch(core: CoreClient) -> None:
    harness, turn, lease = await leased(core)
    grant = lease["run"]
    claims = read(grant["token"], await keys_of(core))
    assert jwt.get_unverified_header(grant["token"])["typ"] == "nylorun-run+jwt"
    assert {name: claims[name] for name in ("sub", "trn", "agt", "epc")} == {
        "sub": grant["sessionId"],
        "trn": turn,
        "agt": "plain",
        "epc": grant["epoch"],
    }
    assert claims["exp"] - claims["iat"] == LIFE_MS // 1000
    assert len(claims["jti"]) == 32
    assert grant["tokenExpiresAt"].endswith("Z")
    view = await core.view(grant["sessionId"])
    assert (view["epoch"], view["activeTurnId"], view["status"]) == (grant["epoch"], turn, "running")
    assert await harness.ask("lease.renew", {"runId": grant["runId"]}) == {
        "ok": True,
        "token": grant["token"],
        "tokenExpiresAt": grant["tokenExpiresAt"],
    }


async def test_a_renewal_brings_a_new_token_when_a_third_of_the_old_one_s_life_remains() -> None:
    store = await Store.open(MEMORY)
    now = [1_000_000_000_000]
    tokens = await open_run_tokens(store, LIFE_MS)
    tokens._clock = lambda: now[0]
    first = tokens.mint(RUN)
    now[0] += 10 * 60 * 1000
    assert tokens.current(RUN, first) is first
    now[0] += 1
    second = tokens.current(RUN, first)
    assert second.text != first.text
    assert second.expires_ms > first.expires_ms
    assert "eyJ" not in repr(second)
    await store.close()


async def test_a_run_that_holds_on_gets_new_tokens(tmp_path: Path) -> None:
    async with running_core(run_token_ms=1000) as core, asyncio.timeout(BOUND_S):
        harness, _, lease = await leased(core)
        keys = await keys_of(core)
        token = lease["run"]["token"]
        while True:
            renewed = await harness.ask("lease.renew", {"runId": lease["run"]["runId"]})
            if renewed["token"] != token:
                break
            await asyncio.sleep(0.05)
        assert read(renewed["token"], keys)["sub"] == lease["run"]["sessionId"]


async def test_the_key_outlives_the_process_and_signs_for_this_core_alone(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db") as core:
        _, _, lease = await leased(core)
        first = await keys_of(core)
        token = lease["run"]["token"]
    async with running_core(tmp_path / "core.db") as core:
        assert read(token, await keys_of(core))["sub"] == lease["run"]["sessionId"]
    async with running_core(tmp_path / "other.db") as core:
        other = await keys_of(core)
        assert first.keys[0].key_id != other.keys[0].key_id
        with pytest.raises(jwt.InvalidSignatureError):
            jwt.decode(token, other.keys[0], algorithms=["ES256"], audience="nylorun-gates")


async def test_the_public_key_asks_for_no_token_and_holds_nothing_private() -> None:
    async with running_core(core_token="secret-of-the-core") as core:
        answer = await core.call("GET", "/.well-known/jwks.json", headers={"Authorization": "none"})
        assert answer.status == 200
        [key] = answer.body["keys"]
        assert set(key) == {"kty", "crv", "x", "y", "kid", "use", "alg"}
        assert (key["crv"], key["alg"]) == ("P-256", "ES256")


async def test_a_damaged_key_stops_the_start_with_a_clear_word(tmp_path: Path) -> None:
    async with running_core(tmp_path / "core.db"):
        pass
    with sqlite3.connect(tmp_path / "core.db") as db:
        db.execute("UPDATE signing_keys SET pem = 'nonsense'")
    db.close()
    with pytest.raises(StartFailed, match="key of run tokens"):
        async with running_core(tmp_path / "core.db"):
            pass
