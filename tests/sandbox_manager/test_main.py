"""The process says at its start which driver it took, and gives back what it never used."""

import asyncio
import json

from services.common.logs import configure_logging
from services.sandbox_manager.main import say_driver
from services.sandbox_manager.selection import Probes, Selector
from tests.sandbox_manager.support import FakeBackend


class Lines:
    """A log's stream."""

    def __init__(self) -> None:
        self.records = []

    def write(self, text: str) -> None:
        self.records.append(json.loads(text))

    def flush(self) -> None:
        pass


async def said(backend: FakeBackend, asked_for: str = "auto") -> dict:
    lines = Lines()
    configure_logging("sandbox-manager", stream=lines)
    await say_driver(asked_for, Probes([backend]))
    configure_logging("sandbox-manager")
    [record] = lines.records
    return record


async def test_one_line_names_the_driver_and_why():
    record = await said(FakeBackend())
    assert record["level"] == "info"
    assert record["message"] == "sandbox_driver_chosen"
    assert record["askedFor"] == "auto"
    assert record["driver"] == "1.0"


async def test_a_driver_that_is_missing_is_an_error_with_its_reason():
    record = await said(FakeBackend(available=False), "bwrap")
    assert record["level"] == "error"
    assert record["message"] == "sandbox_driver_missing"
    assert (record["askedFor"], record["reason"]) == ("bwrap", "it is broken")


async def test_the_start_and_the_first_request_share_one_probe():
    backend = FakeBackend()
    probes = Probes([backend])
    async with asyncio.TaskGroup() as group:
        group.create_task(say_driver("auto", probes))
        group.create_task(Selector("auto", probes).select())
    assert backend.probes == 1
