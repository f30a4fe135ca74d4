"""Nothing gets out of a sandbox: every attempt fails on bubblewrap, with the manager as an ordinary user and as
root (which then gives root up)."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.common.support import TOKEN, socket_folder
from tests.sandbox_manager.escapes import ATTEMPTS, ESCAPED, Attempt, Host, Shown, judge, try_out
from tests.sandbox_manager.jail import (
    ManagerCell,
    as_user,
    hosts_file,
    outside,
    owner_of,
    plant_other_workspace,
)
from tests.sandbox_manager.running import Running, started
from tests.sandbox_manager.support import BOUND, small_volume

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.system]

VOLUME_MIB, FREE_MIB = 400, 100


@dataclass
class Jail:
    """A manager, and what is outside of its sandboxes."""

    running: Running
    host: Host


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["user", "root"])
async def jail(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Jail]:
    """A manager on bubblewrap, on a small volume."""
    mode: str = request.param
    if mode == "root" and os.geteuid() != 0:
        pytest.skip("shows that root is given up; needs root")
    owner = owner_of(mode)
    async with outside(owner) as found:
        with small_volume(found.folder / "volume", VOLUME_MIB) as root, socket_folder() as sockets:
            prefix, extra = as_user(owner if mode == "user" else None, hosts_file(found.folder))
            if mode == "user" and os.geteuid() == 0:
                os.chown(root, owner, owner)
                os.chown(sockets, owner, owner)
            extra |= {
                "WHIPPLETREE_SANDBOX_DISK_FREE": f"{FREE_MIB}MiB",
                "WT_SECRET": found.host.secret,
            }
            async with started(root, sockets, "bwrap", prefix, extra) as running:
                host = await plant_other_workspace(running, found.host)
                places = {**host.places, "SERVICE_SOCKET": str(sockets / "s")}
                yield Jail(running, Host(host.secret, places, host.unchanged))
                assert running.process.returncode is None


@pytest.mark.spec("sandbox-manager:19.16")
@pytest.mark.spec("sandbox-manager:19.25")
@pytest.mark.spec("sandbox-manager:19.26")
@pytest.mark.spec("sandbox-manager:19.33")
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_an_attempt_fails(jail: Jail, attempt: Attempt) -> None:
    cell = ManagerCell.of(jail.running, jail.host, attempt)
    async with asyncio.timeout(attempt.timeout + BOUND):
        got = await try_out(cell, attempt)
        assert got is None, f"{attempt.proves}: {got}"
        after = await cell.tool("bash", command="echo next; cd /workspace && rm -rf -- * .[!.]*")
    assert after["output"]["stdout"] == "next\n", (attempt.proves, after)


async def test_the_manager_runs_as_it_should(jail: Jail, request: pytest.FixtureRequest) -> None:
    status = Path(f"/proc/{jail.running.process.pid}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    wanted = owner_of("user") if "user" in request.node.name else 0
    assert facts["Uid"].split() == [str(wanted)] * 4
    if wanted:
        assert int(facts["CapEff"], 16) == 0
    cell = ManagerCell.of(jail.running, jail.host, ATTEMPTS[0])
    inside = (await cell.tool("bash", command="cat /proc/self/uid_map; touch mine"))["output"][
        "stdout"
    ].split()
    assert inside[0] == "1000"
    (made,) = jail.running.root.glob("sandboxes/nylorun-*/workspace/mine")
    assert made.stat().st_uid == owner_of("user" if "user" in request.node.name else "root") != 0


@pytest.mark.shows_secrets
@pytest.mark.skipif(os.geteuid() != 0, reason="outside, the attempts look for what only root may see")
@pytest.mark.parametrize(
    "attempt", [attempt for attempt in ATTEMPTS if attempt.outside], ids=lambda attempt: attempt.name
)
async def test_outside_of_a_sandbox_the_same_command_finds_what_it_looks_for(
    jail: Jail, attempt: Attempt, tmp_path: Path
) -> None:
    ran = await asyncio.to_thread(
        subprocess.run,
        ["/bin/bash", "-c", jail.host.fill(attempt.command)],
        capture_output=True, check=False, cwd=tmp_path, timeout=BOUND, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    text = ran.stdout.decode("utf-8", "replace")
    assert judge(jail.host, Shown(ran.returncode, text, "")) is not None, (ran.stdout[:500], ran.stderr[:500])


async def test_there_are_at_least_sixty_and_each_says_what_it_proves() -> None:
    assert len(ATTEMPTS) >= 60
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS)
    assert all(attempt.proves and (attempt.command or attempt.attack) for attempt in ATTEMPTS)
    assert judge(Host("abc", {}), Shown(0, f"{ESCAPED}\n", "")) is not None
    assert judge(Host("abc", {}), Shown(0, "", "xabcx")) is not None
    assert judge(Host("abc", {}), Shown(0, "ab c", "")) is None
    assert TOKEN
