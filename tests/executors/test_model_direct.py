"""A gateway and several model-executors of the direct route over one store (model-executor 13.7)."""

import asyncio
import contextlib
import secrets

import pytest

from gateway.engine.contract import AbortKind
from gateway.executors import rendezvous
from gateway.executors.contract import AbortSignal, RunAborted
from gateway.executors.factory import connect
from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.route import DirectRoute
from services.model_executor.direct.store import CallStore
from services.model_executor.executor import ModelExecutor
from services.model_executor.service import ModelExecutorService
from tests.common.support import BOUND_S, TOKEN, until
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble, held, openai_text
from tests.executors.support import PATIENT, QUICK, Target, abort, model_effect, ports, run_of
from tests.model_executor.direct import KEY, config_text


class Replicas:
    """Two addresses of one service; the tests start and kill executors there."""

    def __init__(self, provider, made, connected, folder, addresses):
        self.provider, self.ports, self.connected = provider, made, connected
        self.folder, self.addresses = folder, addresses
        self.executors = {}

    @property
    def model(self):
        return self.connected.executors.model

    async def start(self, address, says=None):
        instance = secrets.token_hex(8)
        config = read_config(config_text(self.provider.origin, "openai-completions"), {"KEY": KEY})
        route = DirectRoute(config, CallStore(self.folder / "state.sqlite", instance=instance))
        executor = self.executors[address] = ModelExecutor(route)
        executor.listens(address if says is None else says)
        await self.ports.start(ModelExecutorService(executor, instance), address)
        await until(lambda: any(r.serving and r.address == address for r in self.model._replicas.replicas))

    async def kill(self, address):
        """The process is gone: nothing is written any more and its lock is free."""
        executor = self.executors.pop(address)
        await self.ports.kill(address)
        store = executor.route._store
        store.finish = store.forget = _nothing
        await executor.close()

    def session_of(self, address):
        """A session whose calls belong to an address when both serve."""
        for number in range(1000):
            session = f"s{number}"
            if rendezvous.choose(self.addresses, session) == address:
                return session
        raise AssertionError("no session found")

    def execute(self, session, rejoin=False, signal=None, epoch=3):
        run = run_of(session_id=session, epoch=epoch)
        work = self.model.execute(model_effect(), run, signal or AbortSignal(), rejoin)
        return asyncio.ensure_future(work)


async def _nothing(*_):
    pass


@contextlib.asynccontextmanager
async def replicas(tmp_path, go, timings=PATIENT):
    provider = ProviderDouble(replies=[held(go, openai_text())])
    async with asyncio.timeout(BOUND_S), serving(provider), ports() as made:
        addresses = [f"unix:{made.folder}/{name}" for name in ("a", "b")]
        targets = {"model-executor": [Target("m", addresses[0]), Target("n", addresses[1])]}
        targets |= {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "sandbox-manager")}
        async with connect(targets, {"model-executor": TOKEN}, timings=timings) as connected:
            it = Replicas(provider, made, connected, tmp_path, addresses)
            try:
                yield it
            finally:
                go.set()
                for executor in it.executors.values():
                    await executor.close()


@pytest.mark.parametrize("says", [None, ""])
async def test_a_replica_added_mid_call_sends_the_caller_where_the_call_runs(tmp_path, says):
    go = asyncio.Event()
    async with replicas(tmp_path, go) as it:
        first, second = it.addresses
        session = it.session_of(second)
        await it.start(first, says)
        lost = it.execute(session)
        await it.provider.arrived.wait()
        await it.start(second, says)
        lost.cancel()
        joined = it.execute(session, rejoin=True, epoch=4)
        await until(lambda: it.executors[first].work.counts.get("model.joined"))
        go.set()
        assert (await joined).value["output"][0]["text"] == "hello"
        assert len(it.provider.requests) == 1
        # Its outcome is kept for both.
        again = await it.execute(session, rejoin=True, epoch=5)
        assert again.value == (await joined).value
        assert len(it.provider.requests) == 1


async def test_a_call_whose_replica_dies_while_another_points_to_it_is_lost_and_not_sent_again(tmp_path):
    go = asyncio.Event()
    async with replicas(tmp_path, go) as it:
        first, second = it.addresses
        session = it.session_of(second)
        await it.start(first)
        lost = it.execute(session)
        await it.provider.arrived.wait()
        await it.start(second)
        lost.cancel()
        joined = it.execute(session, rejoin=True, epoch=4)
        await until(lambda: it.executors[first].work.counts.get("model.joined"))
        await it.kill(first)
        outcome = (await joined).value
        assert (outcome["code"], outcome["retryable"]) == ("transient", True)
        assert "may have been billed" in outcome["message"]
        go.set()
        assert len(it.provider.requests) == 1


async def test_a_call_that_runs_where_this_gateway_never_goes_is_not_started_again(tmp_path):
    go = asyncio.Event()
    async with replicas(tmp_path, go, QUICK) as it:
        stranger = f"unix:{it.ports.folder}/stranger"
        first, _ = it.addresses
        session = it.session_of(first)
        await it.start(first)
        config = read_config(config_text(it.provider.origin, "openai-completions"), {"KEY": KEY})
        store = CallStore(tmp_path / "state.sqlite")
        other = ModelExecutor(DirectRoute(config, store))
        other.listens(stranger)
        from tests.model_executor.support import call_of

        effect = model_effect()
        run = run_of(session_id=session)
        call = call_of(
            effect.model_call.parts[0].decode(),
            tenant_id=run.tenant_id,
            session_id=session,
            turn_id=run.turn_id,
            agent_id=run.agent_id,
            epoch=3,
        )
        running = asyncio.ensure_future(other.call(call))
        await it.provider.arrived.wait()
        outcome = (await it.execute(session, rejoin=True, epoch=4)).value
        assert outcome["code"] == "transient"
        assert "another model-executor" in outcome["message"]
        go.set()
        assert "hello" in await running
        await other.close()
        assert len(it.provider.requests) == 1


async def test_a_cancel_of_a_call_that_was_joined_elsewhere_stops_it_there(tmp_path):
    go = asyncio.Event()
    async with replicas(tmp_path, go) as it:
        first, second = it.addresses
        session = it.session_of(second)
        await it.start(first)
        lost = it.execute(session)
        await it.provider.arrived.wait()
        await it.start(second)
        lost.cancel()
        signal = AbortSignal()
        joined = it.execute(session, rejoin=True, signal=signal, epoch=4)
        await until(lambda: it.executors[first].work.counts.get("model.joined"))
        abort(signal, AbortKind.CANCEL)
        with pytest.raises(RunAborted):
            await joined
        await until(lambda: not it.executors[first].work.in_flight())
        assert len(it.provider.requests) == 1


async def test_a_call_right_after_its_replica_died_waits_for_the_next_process(tmp_path):
    go = asyncio.Event()
    go.set()
    async with replicas(tmp_path, go) as it:
        first, _ = it.addresses
        await it.start(first)
        [replica] = [one for one in it.model._replicas.replicas if one.address == first]
        await it.kill(first)
        assert replica.serving  # nobody has noticed yet
        pending = it.execute("s")
        await asyncio.sleep(0)
        await it.start(first)
        assert (await pending).value["output"][0]["text"] == "hello"
        assert len(it.provider.requests) == 1
