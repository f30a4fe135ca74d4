"""The core killed by SIGKILL at every point of a flow's turn, started again, and the story checked.

The flow: a function that makes a list, an agent for each of two items in a linked session, and a tool. No
tool is posted twice, a function only ever with its own key, every linked turn runs once, and the flow ends
`completed`, or `uncertain` because of the tool and goes on after a person cancels.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.dev_core.endpoint import Endpoint, endpoint
from tests.dev_core.flow_player import FN, run_flow, workflow
from tests.dev_core.process import CoreProcess, core_process
from tests.dev_core.support import Lease, eventually
from tests.dev_core.test_kill import LEASE_MS, Story

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

FLOW = workflow(
    {"chain": [{"map": {"each": {"agent": "w"}}, "input": FN, "id": "m"}, {"tool": {"name": "send"}}]}, "w"
)
POINTS = 44
"""Of the story when nothing is killed."""
STEP = 3
"""Every point was tried once; these meet frames in flight and frames just answered."""


class FlowStory(Story):
    """One workflow session's turn, and the linked ones below it."""

    def __init__(self, core: CoreProcess, actions: Endpoint, kill_at: int) -> None:
        super().__init__(core, actions, kill_at)
        self.completed: Counter[str] = Counter()

    async def prepare(self) -> None:
        client = self.core.client
        await client.agent(FLOW, actions={"url": self.actions.url})
        self.session_id = await client.session(FLOW["id"])

    async def _act(self, intent: dict[str, Any]) -> Any:
        await self.point()
        value = ["x", "y"] if intent["kind"] == "fn" else {"kind": "completed", "output": intent["input"]}
        return await self.actions.answer(200, {"value": value})(intent)

    async def run(self, lease: Lease) -> None:
        async def ask(method: str, params: dict[str, Any]) -> Any:
            return await self.ask(lease.harness, method, params)

        if lease.start["engine"] == "flow":
            await run_flow(lease, ask)
            return
        model = lease.effect("model", "invocation_1")
        known = {one["effectId"] for one in lease.start["outcomes"]}
        if model["effectId"] not in known:
            answer = await ask("effect.intent", lease.ask_intent(model))
            if answer["status"] == "execute":
                value = {"output": [{"type": "text", "text": "said"}]}
                params = {"runId": lease.id, "effectId": model["effectId"], "value": value}
                await ask("effect.outcome", params)
        output = f"w: {lease.start['checkpoint']['input']}"
        params = {"runId": lease.id, "status": "completed", "state": lease.state(), "output": output}
        await ask("turn.completed", {**params, "transcript": []})

    async def check(self) -> None:
        client = self.core.client
        log = await client.log(self.session_id)

        async def all_seen() -> bool:
            return len(self.seen) >= len(log)

        await eventually(all_seen, "the reader has seen the whole log")
        assert self.seen == log
        types = Counter(event["type"] for event in log)
        assert types["turn.completed"] == 1
        assert types["turn.started"] == 1 + types["turn.cancelled"]
        last = next(event for event in log if event["type"] == "turn.completed")
        assert last["payload"]["output"] == ["w: x", "w: y"]
        for key, count in self.actions.posts.items():
            assert count == 1 if ":tool:" in key else count <= 4, self.actions.posts
        effects = [event for event in log if "effectId" in event["payload"]]
        ended = [e["payload"]["effectId"] for e in effects if e["type"].endswith(".completed")]
        assert len(ended) == len(set(ended))
        started = [e["payload"]["effectId"] for e in log if e["type"] == "agent.started"]
        assert len(started) == len(set(started))
        answer = await client.get(f"/v1/sessions?parentId={self.session_id}")
        assert len(answer.body["sessions"]) == 2
        for linked in answer.body["sessions"]:
            assert linked["status"] == "completed"
            story = Counter(event["type"] for event in await client.log(linked["id"]))
            assert story["turn.started"] == story["turn.completed"] + story["turn.cancelled"]
            assert story["turn.completed"] <= types["turn.started"]
        if self._watcher is not None:
            self._watcher.cancel()


async def play(tmp_path: Path, kill_at: int) -> FlowStory:
    database = tmp_path / f"core-{kill_at}.db"
    settings = {"WHIPPLETREE_CORE_LEASE_MS": LEASE_MS, "WHIPPLETREE_CORE_HOLD_MS": "0"}
    async with endpoint() as actions, core_process(database, **settings) as core:
        story = FlowStory(core, actions, kill_at)
        async with asyncio.timeout(60):
            await story.play()
            await story.check()
        return story


async def test_without_a_kill_the_flow_runs_in_one_go(tmp_path: Path) -> None:
    story = await play(tmp_path, 0)
    assert story.core.starts == 1
    assert "turn.cancelled" not in [event["type"] for event in story.seen]
    assert story.points == POINTS


@pytest.mark.parametrize("kill_at", range(1, POINTS + 1, STEP))
async def test_killed_at_any_point_nothing_is_lost_and_no_tool_runs_twice(
    tmp_path: Path, kill_at: int
) -> None:
    story = await play(tmp_path, kill_at)
    assert story.core.starts == 2
