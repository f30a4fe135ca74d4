"""A gateway, a model-executor and a gate over their sockets: aborts, losses and renewed tokens (model-executor 6)."""

import asyncio
import contextlib
import secrets

import pytest

from gateway.engine.contract import AbortKind
from gateway.executors.contract import AbortSignal, RunAborted
from gateway.executors.factory import connect
from services.model_executor.executor import ModelExecutor
from services.model_executor.gate.client import GateClient
from services.model_executor.gate.route import GateRoute
from services.model_executor.service import ModelExecutorService
from tests.common.support import BOUND_S, TOKEN, until
from tests.doubles.http import serving
from tests.doubles.model_gate import TENANT, Grant, ModelGateDouble
from tests.executors.support import PATIENT, Target, abort, aborted, model_effect, ports, run_of


class Chain:
    def __init__(self, gate, made, connected, address):
        self.gate, self.ports, self.connected, self.address = gate, made, connected, address
        self.executors = []

    @property
    def model(self):
        return self.connected.executors.model

    async def start(self, address=None, **options):
        executor = ModelExecutor(GateRoute(GateClient(self.gate.origin), **options))
        self.executors.append(executor)
        await self.ports.start(ModelExecutorService(executor), address or self.address)

    async def kill(self):
        await self.ports.kill(self.address)
        for executor in self.executors:
            for task in list(executor._tasks):
                task.cancel()

    def execute(self, signal=None, rejoin=False, effect_id="e", **run):
        values = {"tenant_id": TENANT, **run}
        return asyncio.ensure_future(
            self.model.execute(model_effect(effect_id), run_of(**values), signal or AbortSignal(), rejoin)
        )


class Held:
    def __init__(self):
        self.go, self.asked = asyncio.Event(), asyncio.Event()

    async def __call__(self, body):
        self.asked.set()
        await self.go.wait()
        return "hello"


@contextlib.asynccontextmanager
async def chain(replicas=1, **options):
    async with asyncio.timeout(BOUND_S), serving(ModelGateDouble(provider=Held())) as gate, ports() as made:
        gate.tokens["token-1"] = Grant(epoch=3)
        address = f"unix:{made.folder}/{secrets.token_hex(4)}"
        addresses = [address, *(f"{address}{number}" for number in range(1, replicas))]
        targets = {"model-executor": [Target("m", one) for one in addresses]}
        targets |= {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "sandbox-manager")}
        async with connect(targets, {"model-executor": TOKEN}, timings=PATIENT) as connected:
            it = Chain(gate, made, connected, address)
            for one in addresses:
                await it.start(one, **options)
            # What a replica said before its health did is asked for again: only then calls may go there.
            await until(lambda: _routes_that_serve(connected) == ["gate"] * replicas)
            try:
                yield it
            finally:
                for executor in it.executors:
                    await executor.close()


def _routes_that_serve(connected):
    replicas = connected.health.services()["model-executor"]["replicas"]
    return [replica.get("facts", {}).get("route") for replica in replicas if replica["serving"]]


async def test_the_gate_route_recovers():
    async with chain() as it:
        assert it.model.recovers()


@pytest.mark.spec("model-executor:15.14", "model-executor:15.15", "model-executor:15.16")
@pytest.mark.parametrize("kind", list(AbortKind))
async def test_every_abort_closes_the_connection_and_only_a_cancel_reaches_the_gate(kind):
    async with chain() as it:
        signal = AbortSignal()
        pending = it.execute(signal)
        await it.gate.provider.asked.wait()
        abort(signal, kind)
        with pytest.raises(RunAborted):
            await pending
        await it.gate.closed_by_client.wait() if kind is not AbortKind.CANCEL else None
        assert it.gate.cancels == (["e"] if kind is AbortKind.CANCEL else [])
        await until(lambda: not it.executors[0].work.in_flight())


@pytest.mark.parametrize("kind", list(AbortKind))
async def test_an_abort_in_force_sends_nothing_but_the_harmless_cancel(kind):
    async with chain() as it:
        with pytest.raises(RunAborted):
            await it.execute(aborted(kind))
        assert it.gate.model_calls == []
        assert it.gate.cancels == (["e"] if kind is AbortKind.CANCEL else [])


@pytest.mark.spec("model-executor:15.31")
async def test_an_aborted_fixture_run_asks_the_gate_for_nothing():
    async with chain() as it:
        with pytest.raises(RunAborted):
            await it.execute(aborted(AbortKind.CANCEL), fixture_model=True)
        assert it.gate.requests == []


@pytest.mark.spec("model-executor:15.49")
async def test_a_killed_executor_s_call_is_sent_again_and_joined_at_the_gate():
    async with chain() as it:
        pending = it.execute()
        await it.gate.provider.asked.wait()
        await it.kill()
        await it.start()
        await until(lambda: len(it.gate.model_calls) == 2)
        it.gate.provider.go.set()
        assert (await pending).value == "hello"
        assert it.gate.provider_calls == 1


async def test_gateway_and_executor_killed_together_join_the_call_at_the_next_run():
    async with chain() as it:
        signal = AbortSignal()
        first = it.execute(signal)
        await it.gate.provider.asked.wait()
        await it.kill()
        first.cancel()
        await it.start()
        it.gate.tokens["token-2"] = Grant(epoch=4)
        again = it.execute(rejoin=True, epoch=4, run_token="token-2")
        await until(lambda: len(it.gate.model_calls) == 2)
        it.gate.provider.go.set()
        assert (await again).value == "hello"
        assert it.gate.provider_calls == 1


async def test_a_renewed_token_reaches_the_executor_while_a_call_is_in_flight():
    async with chain(renews=True) as it:
        it.gate.tokens = {"token-2": Grant(epoch=3)}
        plain, answer = it.gate._call, asyncio.Event()

        async def late(request, wire, act):
            if request.headers["authorization"] == "Bearer token-1":
                await answer.wait()
            await plain(request, wire, act)

        it.gate._call = late
        pending = it.execute()
        await it.gate.arrived.wait()
        await it.connected.executors.mcp.put_grant("s", 3, "token-2", None)
        answer.set()
        it.gate.provider.go.set()
        assert (await pending).value == "hello"
        assert [request.headers["authorization"][-1] for request in it.gate.model_calls] == ["1", "2"]


async def test_a_renewed_token_reaches_every_executor_that_has_a_call_of_the_session():
    async with chain(replicas=2) as it:
        tokens = [
            lambda executor=executor: [known.token for known in executor.route._sessions.values()]
            for executor in it.executors
        ]
        pending = [it.execute(effect_id=f"e{number}") for number in range(2)]
        await until(lambda: len(it.gate.model_calls) == 2)
        assert [held() for held in tokens] == [["token-1"], ["token-1"]]
        await it.connected.executors.mcp.put_grant("s", 3, "token-2", None)
        assert [held() for held in tokens] == [["token-2"], ["token-2"]]
        it.gate.provider.go.set()
        await asyncio.gather(*pending)
        await it.model.put_grant("s", "token-3")
        assert [held() for held in tokens] == [[], []]
