"""Run tokens of a real core, checked by a gate, presented by a real model-executor (model-executor 5.2 and 7)."""

import contextlib
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.dev_core.process import core_process
from tests.doubles.core_tokens import CoreTokens
from tests.doubles.http import serving
from tests.doubles.model_gate import ModelGateDouble
from tests.model_executor.direct import HI
from tests.system.executor_process import executor_process, request_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


class Chain:
    """A core, a gate that asks it, an executor, and a harness with a lease."""

    def __init__(self, core, gate, executor):
        self.core, self.gate, self.executor = core, gate, executor

    async def lease(self):
        client = self.core.client
        await client.agent()
        session = await client.session()
        await client.say(session)
        harness = client.harnesses[-1] if client.harnesses else await client.connect()
        return await harness.lease()

    async def call(self, lease, token, effect="model:1", **changes):
        grant = lease.result["run"]
        effect_ref = {
            "tenant_id": "tn_dev",
            "session_id": grant["sessionId"],
            "turn_id": grant["turnId"],
            "agent_id": "plain",
            "epoch": grant["epoch"],
        }
        request = request_for(HI, f"{lease.prefix}{effect}", **effect_ref | changes)
        return await self.executor.call(request, token)


@contextlib.asynccontextmanager
async def chain(tmp_path, **settings):
    async with core_process(tmp_path / "core.db", **settings) as core:
        tokens = CoreTokens(core.client.ready.http)
        gate = ModelGateDouble(authority=tokens)
        async with serving(gate), executor_process(tmp_path, NYLORUN_GATES_URL=gate.origin) as executor:
            try:
                yield Chain(core, gate, executor)
            finally:
                for harness in core.client.harnesses:
                    await harness.close()
                await tokens.close()


async def test_the_gate_takes_a_run_s_token_while_its_lease_lives_and_no_other(tmp_path):
    async with chain(tmp_path) as it:
        lease = await it.lease()
        token = lease.result["run"]["token"]
        assert await it.call(lease, token) == "hello"
        assert it.gate.authority.claims[0]["trn"] == lease.result["run"]["turnId"]

        # Not a token of this core, though it says the same.
        claims = jwt.decode(token, options={"verify_signature": False})
        header = jwt.get_unverified_header(token)
        other = ec.generate_private_key(ec.SECP256R1())
        forged = jwt.encode(claims, other, "ES256", headers=header)
        for wrong in (forged, "no.jwt", token[:-4] + "AAAA", it.core.client.ready.http):
            outcome = await it.call(lease, wrong, "model:2")
            assert (outcome["code"], outcome["retryable"]) == ("auth", False)
            assert outcome["message"] == (
                "The gates service refused the run token: the run token is not valid"
            )
        outcome = await it.call(lease, token, "model:3", tenant_id="tn_other")
        assert outcome["code"] == "invalid_request"
        assert "another Tenant" in outcome["message"]

        # The user cancels: the lease is over, and a cancel with the same token is still heard.
        await it.core.client.post(f"/v1/sessions/{lease.session_id}/cancel")
        outcome = await it.call(lease, token, "model:4")
        assert (outcome["code"], outcome["message"]) == ("invalid_request", "stale run: the lease is over")
        request = request_for(HI, f"{lease.prefix}model:1", tenant_id="tn_dev", session_id=lease.session_id)
        await it.executor.cancel(request.effect, token)
        assert it.gate.cancels == [f"{lease.prefix}model:1"]
        assert it.gate.cancelled.is_set()
        assert it.gate.provider_calls == 1
        assert it.gate.refusals == ["gate_unauthorized"] * 4 + ["invalid_request", "run_stale"]
        assert token not in "".join(it.executor.lines)


async def test_a_token_ends_with_its_time_and_a_takeover_makes_the_old_one_stale(tmp_path):
    async with chain(tmp_path, WHIPPLETREE_CORE_RUN_TOKEN_MS="2000", WHIPPLETREE_CORE_LEASE_MS="60000") as it:
        lease = await it.lease()
        token = lease.result["run"]["token"]
        ends = jwt.decode(token, options={"verify_signature": False})["exp"]
        while time.time() < ends:
            time.sleep(0.05)  # noqa: ASYNC251  (nothing else is to happen meanwhile)
        outcome = await it.call(lease, token)
        assert outcome["code"] == "auth"
        renewed = await lease.harness.ask("lease.renew", {"runId": lease.id})
        assert renewed["token"] != token
        assert await it.call(lease, renewed["token"]) == "hello"


async def test_a_killed_core_keeps_its_key_and_a_new_lease_outranks_the_old_token(tmp_path):
    async with chain(tmp_path, WHIPPLETREE_CORE_LEASE_MS="500") as it:
        lease = await it.lease()
        old = lease.result["run"]["token"]
        assert await it.call(lease, old) == "hello"
        await it.core.kill()
        client = await it.core.start()
        it.gate.authority._url = client.ready.http
        second = await (await client.connect()).lease()
        assert second.result["run"]["epoch"] > lease.result["run"]["epoch"]
        assert (await it.call(lease, old, "model:2"))["message"].startswith("stale run")
        # The call of the old lease is joined under the new one: the same provider call.
        assert await it.call(second, second.result["run"]["token"]) == "hello"
        assert it.gate.provider_calls == 1
