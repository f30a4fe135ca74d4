"""The core killed by SIGKILL at every point a peer can see, started again, and the story checked.

The story: a turn of two model calls, two sandbox calls and an Action, played by a harness whose executors
remember what they started. At point k of the conversation (a frame in flight, or just answered)
the core is killed. Afterwards: no event that a reader saw is lost or changed, the numbers have no gaps, no
tool ran twice, no Action was posted twice, and the session ends `completed`, or `uncertain` and goes on
after a person cancels.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.dev_core.endpoint import Endpoint, endpoint
from tests.dev_core.process import CoreProcess, core_process
from tests.dev_core.support import HELPER, CoreClient, Harness, Lease, Refused, eventually

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_MS = "250"
POINTS = 29
"""Of the story when nothing is killed."""
IN_FLIGHT_S = (0.0, 0.001, 0.002, 0.004)
"""After a frame was sent: before, around and after its commit."""


class Killed(Exception):
    """The core was killed at the chosen point."""


class Story:
    """One session's turn, however often the core dies."""

    def __init__(self, core: CoreProcess, actions: Endpoint, kill_at: int) -> None:
        self.core = core
        self.actions = actions
        self.kill_at = kill_at
        self.points = 0
        self.tools: Counter[str] = Counter()
        self.models: dict[str, Any] = {}
        self.seen: list[dict[str, Any]] = []
        self.session_id = ""
        self._watcher: asyncio.Task[None] | None = None
        actions.script = self._act

    async def _act(self, intent: dict[str, Any]) -> Any:
        await self.point()
        return await self.actions.answer(200, {"value": {"kind": "completed", "output": "noted"}})(intent)

    async def point(self, delay_s: float = 0.0) -> None:
        """One more point of the conversation; kills the core at the chosen one."""
        self.points += 1
        if self.points == self.kill_at:
            await asyncio.sleep(delay_s)
            await self.core.kill()

    async def play(self) -> None:
        """Plays until the session's turn is over."""
        await self.prepare()
        self.watch()
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self.post("messages", {"text": "go"})
        for _ in range(20):
            try:
                await self.run_until_over()
                return
            except (Refused, OSError, aiohttp.ClientError, TimeoutError):
                await self.restart()
        raise AssertionError("the story does not end")

    async def prepare(self) -> None:
        """The agent, and a session of it."""
        client = self.core.client
        await client.agent(HELPER, actions={"url": self.actions.url})
        self.session_id = await client.session("helper")

    async def restart(self) -> None:
        """Starts the core again, as a supervisor would."""
        if self._watcher is not None:
            self._watcher.cancel()
        await self.core.kill()
        await self.core.start()
        self.watch()

    async def post(self, what: str, body: Any) -> None:
        path = f"/v1/sessions/{self.session_id}/{what}"
        posting = asyncio.create_task(self.core.client.post(path, body))
        await self.point(IN_FLIGHT_S[self.points % len(IN_FLIGHT_S)])
        answer = await posting
        assert answer.status in (200, 202), answer
        await self.point()

    def watch(self) -> None:
        """A reader of the log that resumes where it was."""
        self._watcher = asyncio.create_task(self._watch(self.core.client))

    async def _watch(self, client: CoreClient) -> None:
        after = self.seen[-1]["seq"] if self.seen else 0
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with client.stream(self.session_id, after) as stream:
                async for event in stream:
                    self.seen.append(event)

    async def run_until_over(self) -> None:
        client = self.core.client
        harness = await client.connect()
        try:
            while True:
                status = await client.status(self.session_id)
                if status in ("idle", "cancelled"):
                    # The message was lost with the core that had not committed it, or was cancelled.
                    await self.post("messages", {"text": "go"})
                elif status == "uncertain":
                    await self.post("cancel", None)
                elif status == "completed":
                    return
                else:
                    async with asyncio.timeout(5):
                        await self.run(Lease(harness, await self.ask(harness, "lease", {})))
        finally:
            await harness.close()

    async def ask(self, harness: Harness, method: str, params: Any) -> Any:
        _, asked = harness.start(method, params)
        await self.point(IN_FLIGHT_S[self.points % len(IN_FLIGHT_S)])
        result = await asked
        await self.point()
        return result

    async def run(self, lease: Lease) -> None:
        self.outcomes = {o["effectId"]: o["outcome"]["value"] for o in lease.start["outcomes"]}
        effects = [
            [lease.effect("model", "invocation_1")],
            [lease.call("bash", "c1", "box"), lease.call("write", "c2", "box"), lease.call("note", "c3")],
            [lease.effect("model", "invocation_2")],
        ]
        for group in effects:
            answers = await asyncio.gather(*[self.resolve(lease, effect) for effect in group])
            unresolved = {
                effect["effectId"]: answer
                for effect, answer in zip(group, answers, strict=True)
                if answer in ("pending", "uncertain")
            }
            if unresolved:
                status = "uncertain" if "uncertain" in unresolved.values() else "waiting"
                output = {"status": status, "effectIds": list(unresolved)}
                await self.ask(lease.harness, "turn.waiting", {"runId": lease.id, **output})
                return
        params = {"runId": lease.id, "status": "completed", "state": lease.state(), "output": "done"}
        params["transcript"] = [{"keep": 0, "entries": ["a", "b"], "length": 2}]
        await self.ask(lease.harness, "turn.completed", params)

    async def resolve(self, lease: Lease, effect: dict[str, Any]) -> str:
        effect_id = effect["effectId"]
        if effect_id in self.outcomes:
            return "completed"
        answer = await self.ask(lease.harness, "effect.intent", lease.ask_intent(effect))
        if answer["status"] != "execute":
            return str(answer["status"])
        if effect["kind"] == "model":
            value = self.models.setdefault(effect_id, {"output": [{"type": "text", "text": effect_id}]})
        else:
            self.tools[effect_id] += 1
            value = {"kind": "completed", "output": self.tools[effect_id]}
        params = {"runId": lease.id, "effectId": effect_id, "value": value}
        return str((await self.ask(lease.harness, "effect.outcome", params))["status"])

    async def check(self) -> None:
        """What must hold whenever the core died."""
        log = await self.core.client.log(self.session_id)

        async def all_seen() -> bool:
            return len(self.seen) >= len(log)

        await eventually(all_seen, "the reader has seen the whole log")
        assert self.seen == log
        assert all(count == 1 for count in self.tools.values()), self.tools
        assert all(count == 1 for count in self.actions.posts.values()), self.actions.posts
        types = Counter(event["type"] for event in log)
        assert types["turn.completed"] == 1
        assert types["turn.started"] == 1 + types["turn.cancelled"]
        ended = [
            e["payload"]["effectId"] for e in log if e["type"] in ("tool.completed", "message.assistant")
        ]
        assert len(ended) == len(set(ended))
        if self._watcher is not None:
            self._watcher.cancel()


async def play(tmp_path: Path, kill_at: int) -> Story:
    database = tmp_path / f"core-{kill_at}.db"
    async with (
        endpoint() as actions,
        core_process(database, WHIPPLETREE_CORE_LEASE_MS=LEASE_MS, WHIPPLETREE_CORE_HOLD_MS="0") as core,
    ):
        story = Story(core, actions, kill_at)
        async with asyncio.timeout(60):
            await story.play()
            await story.check()
        return story


async def test_without_a_kill_the_story_is_told_in_one_go(tmp_path: Path) -> None:
    story = await play(tmp_path, 0)
    assert story.core.starts == 1
    assert story.points == POINTS
    assert len(story.tools) == 2
    assert "turn.cancelled" not in [event["type"] for event in story.seen]


@pytest.mark.parametrize("kill_at", range(1, POINTS + 1))
async def test_killed_at_any_point_nothing_is_lost_and_nothing_runs_twice(
    tmp_path: Path, kill_at: int
) -> None:
    story = await play(tmp_path, kill_at)
    assert story.core.starts == 2
