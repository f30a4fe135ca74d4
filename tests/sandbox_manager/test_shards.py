"""Several real managers behind one gateway's client: a workspace has one home, and no other takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.executors.contract import AbortSignal, WorkspaceFailed
from gateway.executors.factory import ConnectedExecutors, connect
from gateway.settings import Target
from services.sandbox_manager.keys import resource_key, session_key
from tests.common.support import TOKEN, socket_folder
from tests.executors.support import PATIENT, Claims, caller_of
from tests.sandbox_manager.running import Running, started
from tests.sandbox_manager.support import BOUND, TENANT

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

NAMES = ("alpha", "beta", "gamma")
SPEC = {"network": {"preset": "none"}}
LATER_MS = 4e12


class Shards:
    """Managers with stable names, each with a root of its own that outlives its process."""

    def __init__(self, folder: Path, sockets: Path, stack: AsyncExitStack) -> None:
        self.roots = {name: folder / name for name in NAMES}
        self._sockets = {name: sockets / name for name in NAMES}
        self._stack = stack
        self._running: dict[str, Running] = {}
        for name in NAMES:
            self.roots[name].mkdir()
            self._sockets[name].mkdir(mode=0o700)

    def targets(self) -> list[Target]:
        """Where they are."""
        return [Target(name, f"unix:{self._sockets[name]}/s") for name in NAMES]

    async def start(self, name: str) -> None:
        """Starts one on its root."""
        running = started(self.roots[name], self._sockets[name])
        self._running[name] = await self._stack.enter_async_context(running)

    async def kill(self, name: str) -> None:
        """Ends one without a word."""
        self._running[name].process.kill()
        await self._running[name].process.wait()

    def home(self, key: str) -> str:
        """The one that has a workspace's folder."""
        (name,) = [name for name, root in self.roots.items() if (root / "sandboxes" / key).exists()]
        return name

    def keys(self) -> list[str]:
        """All folders of workspaces."""
        return sorted(path.name for root in self.roots.values() for path in root.glob("sandboxes/nylorun-*"))


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[tuple[Shards, ConnectedExecutors]]:
    others = {name: [Target(name, "unix:/nowhere")] for name in ("mcp-pool", "model-executor")}
    timings = replace(PATIENT, resend_for=1.0, workspace=20.0)
    with socket_folder() as sockets:
        async with AsyncExitStack() as stack:
            shards = Shards(folder, sockets, stack)
            async with asyncio.TaskGroup() as group:
                for name in NAMES:
                    group.create_task(shards.start(name))
            targets = {"sandbox-manager": shards.targets(), **others}
            connection = connect(targets, {"sandbox-manager": TOKEN}, timings=timings)
            connected = await stack.enter_async_context(connection)
            await serving(connected, True)
            yield shards, connected


async def serving(connected: ConnectedExecutors, wanted: bool) -> None:
    """Waits until all shards serve, or one doesn't."""
    async with asyncio.timeout(BOUND):
        while ("sandbox-manager" not in connected.health.missing()) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def sh(connected: ConnectedExecutors, command: str, **caller: Any) -> Any:
    answer = await connected.executors.workspaces.run(
        caller_of(tenant_id=TENANT, **caller), SPEC, "bash", {"command": command}, AbortSignal()
    )
    return answer.value["output"]["stdout"]  # type: ignore[index, call-overload]


async def test_a_workspace_whose_shard_is_gone_is_unavailable_and_comes_back_with_its_files(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as (shards, connected):
        homes: dict[str, str] = {}
        for number in range(24):
            owner = f"s{number}"
            await sh(connected, f"echo {owner} > f", owner_id=owner)
            homes[owner] = shards.home(session_key(TENANT, owner))
            if set(homes.values()) == set(NAMES):
                break
        assert set(homes.values()) == set(NAMES)
        # Two sessions of one shared sandbox meet in one place.
        await sh(connected, "echo shared > f", owner_id="s0", sandbox_id="box")
        assert await sh(connected, "cat f", owner_id="s1", sandbox_id="box") == "shared\n"
        lost = homes["s0"]
        await shards.kill(lost)
        await serving(connected, False)
        before = shards.keys()
        workspaces = connected.executors.workspaces
        with pytest.raises(WorkspaceFailed) as caught:
            await sh(connected, "cat f", owner_id="s0")
        assert caught.value.code == "unavailable"
        with pytest.raises(WorkspaceFailed) as caught:
            await workspaces.list_files(
                caller_of(tenant_id=TENANT, owner_id="s0"), SPEC, "/workspace", 10, AbortSignal()
            )
        assert caught.value.code == "unavailable"
        assert shards.keys() == before
        for owner, home in homes.items():
            if home != lost:
                assert await sh(connected, "cat f", owner_id=owner) == f"{owner}\n"
        # What concerns all of them is no answer without one of them.
        for ask in (
            workspaces.report(TENANT, "auto"),
            workspaces.sweep(TENANT, "auto", None, Claims()),
            workspaces.remove(TENANT, "auto", False, [session_key(TENANT, "s0")], []),
        ):
            with pytest.raises(WorkspaceFailed) as caught:
                await ask
            assert caught.value.code == "unavailable"
        assert shards.keys() == before
        await shards.start(lost)
        await serving(connected, True)
        assert await sh(connected, "cat f", owner_id="s0") == "s0\n"


async def test_report_sweep_and_removal_go_to_all_shards_and_are_merged(tmp_path: Path) -> None:
    async with three(tmp_path) as (shards, connected):
        owners = [f"s{number}" for number in range(12)]
        for owner in owners:
            await sh(connected, "echo x > f", owner_id=owner)
        await sh(connected, "echo x > f", owner_id="s0", sandbox_id="box")
        keys = sorted([*(session_key(TENANT, owner) for owner in owners), resource_key(TENANT, "box")])
        assert shards.keys() == keys
        workspaces = connected.executors.workspaces
        report: Any = await workspaces.report(TENANT, "auto")
        assert report["backend"] == "virtual"
        claims = Claims()
        records: Any = await workspaces.sweep(TENANT, "auto", LATER_MS, claims)
        assert sorted(record["key"] for record in records) == keys
        assert {record["state"] for record in records} == {"stopped"}
        stopped = [event.payload["state"] for event in claims.events]
        assert stopped == ["stopped"] * len(keys)
        gone = [session_key(TENANT, "s3"), session_key(TENANT, "s7")]
        await workspaces.remove(TENANT, "auto", False, gone, ["box"])
        left = sorted(set(keys) - {*gone, resource_key(TENANT, "box")})
        assert shards.keys() == left
        records = await workspaces.sweep(TENANT, "auto", None, claims)
        assert sorted(record["key"] for record in records) == left
        await workspaces.remove(TENANT, "auto", True, [], [])
        assert shards.keys() == []
        assert await workspaces.sweep(TENANT, "auto", None, claims) == []
