"""A value that is set once."""

import asyncio

from services.common.latch import Latch
from tests.common.support import BOUND_S


async def test_the_first_value_stays_and_each_listener_hears_it_once_in_order():
    latch: Latch[str] = Latch()
    heard: list[tuple[int, str]] = []
    for number in range(3):
        latch.listen(lambda value, number=number: heard.append((number, value)))
    assert latch.value is None
    assert latch.set("first")
    assert not latch.set("second")
    assert (latch.value, heard) == ("first", [(0, "first"), (1, "first"), (2, "first")])


async def test_who_listens_late_hears_at_once_and_who_stopped_hears_nothing():
    latch: Latch[str] = Latch()
    heard: list[str] = []
    forget = latch.listen(heard.append)
    forget()
    forget()
    latch.set("kind")
    assert heard == []
    latch.listen(heard.append)()
    assert heard == ["kind"]


async def test_a_wait_ends_with_the_value_and_a_cancelled_one_leaves_no_listener():
    latch: Latch[str] = Latch()
    waits = [asyncio.create_task(latch.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    assert len(latch._listeners) == 2
    latch.set("kind")
    async with asyncio.timeout(BOUND_S):
        assert await asyncio.gather(*waits[1:]) == ["kind", "kind"]
        assert await latch.wait() == "kind"
