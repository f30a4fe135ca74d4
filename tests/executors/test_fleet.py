"""Whether services are there, what is known of their replicas, and draining them (operations 12.10)."""

import asyncio
import json

import pytest

from gateway.executors import replica_set
from gateway.executors.contract import AbortSignal
from gateway.executors.factory import connect
from gateway.fleet import UnknownReplica
from services.common import admin
from services.common.logs import configure_logging
from tests.common.support import BOUND_S, TOKEN, until
from tests.executors.support import (
    QUICK,
    McpDouble,
    ModelDouble,
    SandboxDouble,
    Target,
    model_effect,
    ports,
    run_of,
    world,
)

ALL = ["model-executor", "mcp-pool", "sandbox-manager"]


async def test_services_are_ready_once_all_three_serve():
    async with ports() as made:
        doubles = [ModelDouble(), McpDouble(), SandboxDouble()]
        targets = {
            double.service: [Target(double.service, f"unix:{made.folder}/{index}")]
            for index, double in enumerate(doubles)
        }
        tokens = dict.fromkeys(ALL, TOKEN)
        async with connect(targets, tokens, timings=QUICK) as connected, asyncio.timeout(BOUND_S):
            assert connected.health.missing() == ALL
            ready = asyncio.ensure_future(connected.services_ready())
            for index, double in enumerate(doubles):
                assert not ready.done()
                await made.start(double, f"unix:{made.folder}/{index}")
            await ready
            assert connected.health.ready()
            lost = asyncio.ensure_future(connected.health.wait(False))
            await asyncio.sleep(0)
            assert not lost.done()
            await made.kill(f"unix:{made.folder}/1")
            await lost
            assert connected.health.missing() == ["mcp-pool"]


async def test_a_service_that_is_lost_and_comes_back_is_logged_once_each(capsys):
    configure_logging("gateway")
    async with world() as made:
        address = made.addresses["mcp-pool"]
        await made.ports.kill(address)
        await until(lambda: not made.connected.health.ready())
        await made.restart(McpDouble())
        await until(made.connected.health.ready)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    events = [line["message"] for line in lines if line.get("name") == "mcp-pool"]
    assert events[:3] == ["service_back", "service_lost", "service_back"]


async def test_a_connection_that_ends_and_is_back_at_once_is_no_loss(capsys):
    configure_logging("gateway")
    async with world(watch_grace=BOUND_S) as made:
        address = made.addresses["mcp-pool"]

        def instance():
            return made.connected.health.services()["mcp-pool"]["replicas"][0].get("instance")

        before = instance()
        await made.ports.kill(address)
        await made.restart(McpDouble())
        await until(lambda: instance() not in (before, None))
        assert made.connected.health.ready()
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert "service_lost" not in [line["message"] for line in lines]


async def test_facts_of_every_replica_and_never_content():
    async with world() as made:
        await made.executors.model.execute(model_effect(), run_of(), AbortSignal(), False)
        services = made.connected.health.services()
        assert list(services) == ALL
        [replica] = services["model-executor"]["replicas"]
        assert services["model-executor"]["serving"] is True
        assert replica["target"] == made.addresses["model-executor"]
        assert (replica["serving"], replica["inFlight"], replica["apiMajor"]) == (True, 0, 1)
        assert replica["facts"] == {"recovers": "true", "route": "scripted"}
        assert replica["instance"]
        assert TOKEN not in json.dumps(services)


async def test_another_process_at_the_address_is_noticed():
    async with world() as made:

        def instance():
            return made.connected.health.services()["mcp-pool"]["replicas"][0].get("instance")

        before = instance()
        await made.ports.kill(made.addresses["mcp-pool"])
        await made.restart(McpDouble())
        await until(lambda: instance() not in (before, None))


@pytest.mark.parametrize(
    ("change", "says"),
    [("version", "major version 2"), ("service", "It is a mcp-pool, not a model-executor")],
)
async def test_a_process_of_another_contract_or_kind_gets_no_work(monkeypatch, change, says):
    async with ports() as made:
        if change == "version":
            monkeypatch.setattr(admin, "API_MAJOR", 2)
        double = ModelDouble()
        double.service = "mcp-pool" if change == "service" else "model-executor"
        address = await made.start(double)
        targets = {name: [Target(name, address)] for name in ALL}
        async with connect(targets, dict.fromkeys(ALL, TOKEN), timings=QUICK) as connected:
            await until(
                lambda: (
                    says in connected.health.services()["model-executor"]["replicas"][0].get("problem", "")
                )
            )
            assert "model-executor" in connected.health.missing()


async def test_a_replica_that_stops_answering_takes_no_new_calls():
    class Frozen(ModelDouble):
        frozen = False

        def facts(self):
            if self.frozen:
                raise RuntimeError("frozen")
            return {}

    async with ports() as made:
        double = Frozen()
        address = await made.start(double)
        targets = {name: [Target(name, address)] for name in ALL}
        async with connect(targets, dict.fromkeys(ALL, TOKEN), timings=QUICK) as connected:
            await until(lambda: "model-executor" not in connected.health.missing())
            double.frozen = True
            await until(lambda: "model-executor" in connected.health.missing())
            double.frozen = False
            await until(lambda: "model-executor" not in connected.health.missing())


async def test_a_wrong_bearer_is_named_and_a_right_one_later_heals():
    async with world(wait=False, bearers=dict.fromkeys(ALL, "00" * 32)) as made:
        await until(
            lambda: "bearer" in made.connected.health.services()["mcp-pool"]["replicas"][0].get("problem", "")
        )
        await made.ports.kill(made.addresses["mcp-pool"])
        await made.restart(McpDouble(), token=f"{TOKEN},{'00' * 32}")
        await until(lambda: "mcp-pool" not in made.connected.health.missing())


async def test_draining_a_replica_tells_what_runs_there_until_nothing_does():
    async with world() as made:
        work = made.mcp.work.begin("mcp", "s", "e", "running")
        told = made.connected.health.drain("mcp-pool", made.addresses["mcp-pool"])
        async with asyncio.timeout(BOUND_S):
            first = await anext(told)
            [running] = first["inFlight"]
            assert (running["kind"], running["sessionId"], running["effectId"]) == ("mcp", "s", "e")
            work.end()
            rest = [one async for one in told]
        assert rest[-1]["inFlight"] == []
        assert made.mcp.draining
        await until(lambda: made.connected.health.missing() == ["mcp-pool"])


async def test_draining_without_a_target_drains_all_of_a_service():
    async with world() as made:
        told = [one async for one in made.connected.health.drain("sandbox-manager", None)]
        assert told[-1] == {"target": made.addresses["sandbox-manager"], "inFlight": []}
        assert made.sandbox.draining


@pytest.mark.parametrize(("service", "target"), [("nothing", None), ("mcp-pool", "h:1")])
async def test_draining_what_is_not_known_is_refused(service, target):
    async with world() as made:
        with pytest.raises(UnknownReplica):
            await anext(made.connected.health.drain(service, target))


async def test_draining_a_replica_that_is_gone_says_so():
    async with world() as made:
        await made.ports.kill(made.addresses["mcp-pool"])
        told = [one async for one in made.connected.health.drain("mcp-pool", None)]
        assert "UNAVAILABLE" in told[0]["error"]


class Dns:
    """A name server whose answer the test changes."""

    def __init__(self, monkeypatch):
        self.addresses: tuple[str, ...] | None = None
        monkeypatch.setattr(replica_set, "resolve", self.resolve)

    async def resolve(self, name):
        if self.addresses is None:
            raise OSError("no answer")
        return self.addresses


async def dns_world(made, count):
    doubles = [ModelDouble() for _ in range(count)]
    addresses = [await made.start(double, "127.0.0.1:0") for double in doubles]
    targets = {name: [Target(name, "dns:///model:4410")] for name in ALL}
    return doubles, [f"ipv4:{address}" for address in addresses], targets


@pytest.mark.spec("operations:13.39")
async def test_addresses_of_a_dns_name_are_followed_and_a_new_replica_gets_work(monkeypatch):
    dns = Dns(monkeypatch)
    async with ports() as made:
        doubles, addresses, targets = await dns_world(made, 2)
        async with connect(targets, dict.fromkeys(ALL, TOKEN), timings=QUICK) as connected:
            model = connected.executors.model

            def serving():
                found = connected.health.services()["model-executor"]["replicas"]
                return sorted(f"ipv4:{one['target']}" for one in found if one["serving"])

            dns.addresses = (addresses[0],)
            await until(lambda: serving() == [addresses[0]])
            dns.addresses = tuple(sorted(addresses))
            await until(lambda: serving() == sorted(addresses))
            for number in range(4):
                await model.execute(model_effect(f"e{number}"), run_of(), AbortSignal(), False)
            assert [len(double.calls) for double in doubles] == [2, 2]
            dns.addresses = None
            await asyncio.sleep(QUICK.resolve_every * 2)
            assert serving() == sorted(addresses)


async def test_calls_on_an_address_that_dns_forgot_end_in_peace(monkeypatch):
    dns = Dns(monkeypatch)
    async with ports() as made:
        doubles, addresses, targets = await dns_world(made, 2)
        dns.addresses = (addresses[0],)
        async with connect(targets, dict.fromkeys(ALL, TOKEN), timings=QUICK) as connected:
            await until(lambda: "model-executor" not in connected.health.missing())

            async def slow(request, context):
                await doubles[0].gate.wait()
                return await doubles[0].answer(request, context)

            doubles[0].behaviour = slow
            pending = asyncio.ensure_future(
                connected.executors.model.execute(model_effect(), run_of(), AbortSignal(), False)
            )
            await doubles[0].arrived.wait()
            dns.addresses = (addresses[1],)
            await until(
                lambda: (
                    [
                        f"ipv4:{one['target']}"
                        for one in connected.health.services()["model-executor"]["replicas"]
                    ]
                    == [addresses[1]]
                )
            )
            doubles[0].gate.set()
            async with asyncio.timeout(BOUND_S):
                assert (await pending).value == "hello"


async def test_what_is_wrong_with_a_service_is_said_in_words_and_its_calls_are_counted():
    async with world() as made:
        health = made.connected.health
        assert health.reasons() == {}
        began, go_on = asyncio.Event(), asyncio.Event()

        async def held(request, context):
            began.set()
            await go_on.wait()
            return await made.model.answer(request, context)

        made.model.behaviour = held
        call = asyncio.create_task(
            made.executors.model.execute(model_effect(), run_of(), AbortSignal(), False)
        )
        async with asyncio.timeout(BOUND_S):
            await began.wait()
            assert health.in_flight() == {"model-executor": 1, "mcp-pool": 0, "sandbox-manager": 0}
            await anext(aiter(health.drain("mcp-pool", None)))
            await until(lambda: "It drains; 0 calls are left." in health.reasons().get("mcp-pool", ""))
            await made.ports.kill(made.addresses["sandbox-manager"])
            await until(
                lambda: (
                    health.reasons().get("sandbox-manager")
                    in ("sandbox-manager: Nobody listens there.", "sandbox-manager: There is no such socket.")
                )
            )
            go_on.set()
            await call
        assert health.in_flight()["model-executor"] == 0
