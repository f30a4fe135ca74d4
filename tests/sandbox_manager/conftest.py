"""Drivers that live as long as a test file: starting an emulated shell takes most of a second."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.sandbox_manager.contract import Backend, Handle
from services.sandbox_manager.signals import Signal
from tests.sandbox_manager.support import CLOSED, DRIVERS, SECOND, make_driver, spec

_numbers = itertools.count()


@pytest.fixture(scope="module")
def driver_root() -> Iterator[Path]:
    """A root for drivers."""
    folder = Path(tempfile.mkdtemp(prefix="wt-sandbox-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def _usable(name: str, root: Path) -> Backend:
    driver = make_driver(name, root)
    probe = await driver.probe()
    if not probe.available:
        await driver.close()
        pytest.skip(f"driver {name}: {probe.reason}")
    return driver


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=DRIVERS)
async def driver(request: pytest.FixtureRequest, driver_root: Path) -> AsyncIterator[Backend]:
    """Every driver that this machine can run."""
    made = await _usable(request.param, driver_root / request.param)
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def _needed_traits(request: pytest.FixtureRequest) -> None:
    """Skips a test of every driver for one that lacks what the test is about, and for nothing else."""
    marker = request.node.get_closest_marker("needs")
    if marker is None or "driver" not in request.fixturenames:
        return
    traits = request.getfixturevalue("driver").traits
    lacking = [name for name in marker.args if not getattr(traits, name)]
    if lacking:
        pytest.skip(f"the driver lacks {', '.join(lacking)}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bwrap(driver_root: Path) -> AsyncIterator[Backend]:
    """The bubblewrap driver, or a skip."""
    made = await _usable("bwrap", driver_root / "bwrap-only")
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def emulated(driver_root: Path) -> AsyncIterator[Backend]:
    """The emulated driver."""
    made = await _usable("emulated", driver_root / "emulated-only")
    yield made
    await made.close()


def fresh_key() -> str:
    """A workspace key that nobody has used."""
    return f"nylorun-tn_a-{next(_numbers):016x}"


@pytest_asyncio.fixture(loop_scope="module")
async def handle(driver: Backend) -> AsyncIterator[Handle]:
    """A fresh workspace on every driver."""
    opened = await driver.open(spec(fresh_key(), network=CLOSED))
    if not driver.traits.list_remove:
        # One workspace for all: what the test before left is taken away.
        await opened.exec("rm -rf -- /workspace/* /workspace/.[!.]*", SECOND, Signal())
    yield opened
    opened.release()


@pytest_asyncio.fixture(loop_scope="module")
async def boxed(bwrap: Backend) -> AsyncIterator[Handle]:
    """A fresh workspace on bubblewrap."""
    opened = await bwrap.open(spec(fresh_key(), network=CLOSED))
    yield opened
    opened.release()


@pytest_asyncio.fixture(loop_scope="module")
async def shell(emulated: Backend) -> AsyncIterator[Handle]:
    """A fresh workspace on the emulated driver."""
    opened = await emulated.open(spec(fresh_key(), network=CLOSED))
    yield opened
    opened.release()
