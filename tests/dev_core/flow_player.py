"""A harness that runs flows with the real engine, and agents by a rule of the test's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.engine.contract import (
    Answer,
    Completed,
    EffectRequest,
    HostError,
    Pending,
    RecordedOutcome,
    SegmentInput,
    Uncertain,
)
from gateway.engine.factory import make_engine
from gateway.runs.output import turn_output
from tests.dev_core.support import Harness, Lease, Refused

FN = {"fn": True}
Agent = Callable[[Lease], Awaitable[Any]]
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


def agent(name: str, /, **members: Any) -> dict[str, Any]:
    """An agent's manifest."""
    return {"manifestSchemaVersion": 4, "id": name, "capabilities": [], **members}


def workflow(root: Any, *agents: Any, name: str = "steps", **members: Any) -> dict[str, Any]:
    """A workflow; agents are names or documents."""
    embedded = [agent(one) if isinstance(one, str) else one for one in agents]
    return {
        "kind": "workflow",
        "workflowSchemaVersion": 2,
        "id": name,
        "root": root,
        "agents": {one["id"]: one for one in embedded},
        **members,
    }


async def says_input(lease: Lease) -> Any:
    """An agent that says what it was told, with its name."""
    return await lease.complete(
        output=f"{lease.start['manifest']['id']}: {lease.start['checkpoint']['input']}"
    )


class FlowHarness:
    """Runs whatever the core offers until it is stopped. `leased` keeps every lease."""

    def __init__(self, harness: Harness, agents: Agent = says_input, ask: Ask | None = None) -> None:
        self._harness = harness
        self._agents = agents
        self._ask = ask if ask is not None else harness.ask
        self._runs: set[asyncio.Task[None]] = set()
        self._leasing: asyncio.Task[None] | None = None
        self.leased: list[Lease] = []
        self.running = 0
        self.most_running = 0

    async def __aenter__(self) -> FlowHarness:
        self._leasing = asyncio.create_task(self._lease_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._leasing is not None
        tasks = [self._leasing, *self._runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def flows(self) -> list[Lease]:
        """The runs of flows so far."""
        return [lease for lease in self.leased if lease.start["engine"] == "flow"]

    async def _lease_all(self) -> None:
        # Waits for ever by design; the test's bound ends it.
        while True:
            _, asked = self._harness.start("lease", {})
            lease = Lease(self._harness, await asked)
            self.leased.append(lease)
            task = asyncio.create_task(self._run(lease))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    async def _run(self, lease: Lease) -> None:
        # A run that was aborted meanwhile is refused what it still says.
        with contextlib.suppress(Refused):
            if lease.start["engine"] == "flow":
                await run_flow(lease, self._ask)
                return
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await self._agents(lease)
            finally:
                self.running -= 1


async def run_flow(lease: Lease, ask: Ask) -> None:
    """Runs one segment with the engine, asking core for every effect, and reports its end."""
    start = lease.start
    engine = make_engine(
        "flow",
        SegmentInput(
            manifest=start["manifest"],
            checkpoint=start["checkpoint"],
            outcomes={
                one["effectId"]: RecordedOutcome(one["effectId"], one["requestHash"], one["outcome"])
                for one in start["outcomes"]
            },
            flow_limits=start["options"]["flowLimits"],
        ),
    )
    step = engine.start(0)
    waiting = list(step.effects)
    while step.result is None:
        effect = waiting.pop(0)
        step = engine.resolve(effect.effect_id, await _answer(lease, effect, ask), 0)
        waiting += step.effects
    method, params = turn_output(lease.id, step.result, ())
    await ask(method, params)


async def _answer(lease: Lease, effect: EffectRequest, ask: Ask) -> Answer:
    params = {
        "runId": lease.id,
        "effect": dict(effect.document),
        "requestHash": effect.request_hash,
    }
    try:
        found = await ask("effect.intent", params)
    except Refused as refused:
        if refused.code == "closed":
            raise
        return HostError(refused.code, refused.message)
    match found["status"]:
        case "completed":
            return Completed(found["outcome"])
        case "pending":
            return Pending()
        case status:
            assert status == "uncertain", status
            return Uncertain()
