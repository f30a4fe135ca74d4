from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.dev_core.support import CoreClient, running_core


@pytest.fixture
async def core() -> AsyncIterator[CoreClient]:
    """A core in memory mode."""
    async with running_core() as client:
        yield client
