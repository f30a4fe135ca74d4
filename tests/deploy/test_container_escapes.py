"""Nothing gets out of a container either: the attempts that fail on bubblewrap fail on the container driver.

They reach a manager of their own, as everybody does. What is no attempt here says so itself (`without`).
"""

import asyncio
import os
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.common.support import socket_folder
from tests.deploy.image import BASE
from tests.sandbox_manager.escapes import ATTEMPTS, Host, try_out
from tests.sandbox_manager.jail import ManagerCell, as_user, hosts_file, outside, plant_other_workspace
from tests.sandbox_manager.running import Running, started
from tests.sandbox_manager.support import BOUND, UID

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.engine, pytest.mark.timeout(300)]

IMAGE = os.environ.get("WHIPPLETREE_BASE_IMAGE") or BASE
WORKSPACE_LIMIT = "300MiB"
"""The engine's mounts are not those of the tests, so no small volume is filled here but a workspace."""
HERE = tuple(attempt for attempt in ATTEMPTS if "container" not in attempt.without)


@dataclass
class Jail:
    """A manager, and what is outside of its containers."""

    running: Running
    host: Host


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jail(based, tmp_path_factory):
    root = tmp_path_factory.mktemp("escapes")
    root.chmod(0o711)
    async with outside(UID if os.geteuid() == 0 else os.geteuid()) as found:
        with socket_folder() as sockets:
            prefix, extra = as_user(None, hosts_file(found.folder))
            extra |= {
                "DOCKER_HOST": based.environ.get("DOCKER_HOST", ""),
                "WHIPPLETREE_SANDBOX_EGRESS_IMAGE": IMAGE,
                "WHIPPLETREE_SANDBOX_DISK_BYTES": WORKSPACE_LIMIT,
                "WT_SECRET": found.host.secret,
            }
            async with started(root, sockets, "container", prefix, extra) as running:
                try:
                    host = await plant_other_workspace(running, found.host, image=IMAGE)
                    places = {**host.places, "SERVICE_SOCKET": str(sockets / "s")}
                    yield Jail(running, Host(host.secret, places, host.unchanged))
                    assert running.process.returncode is None
                finally:
                    label = (root / "sandboxes" / "container-root").read_text().strip()
                    for name in based.docker(
                        "ps", "-aq", "--filter", f"label=whippletree.root={label}"
                    ).split():
                        based.docker("rm", "-f", name)


@pytest.mark.parametrize("attempt", HERE, ids=lambda attempt: attempt.name)
async def test_an_attempt_fails(jail, attempt):
    cell = ManagerCell.of(jail.running, jail.host, attempt, image=IMAGE)
    async with asyncio.timeout(attempt.timeout + BOUND):
        got = await try_out(cell, attempt)
        assert got is None, f"{attempt.proves}: {got}"
        after = await cell.tool("bash", command="echo next; cd /workspace && rm -rf -- * .[!.]*")
    assert after["output"]["stdout"] == "next\n", (attempt.proves, after)


async def test_at_least_sixty_are_made_here():
    assert len(HERE) >= 60
