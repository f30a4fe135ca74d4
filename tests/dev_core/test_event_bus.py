"""When whoever watches a session is woken: at once for what they wait for, else once for what came in a row."""

from __future__ import annotations

from services.dev_core.event_bus import GATHER_S, EventBus

LONG_S = 60.0


async def test_what_says_how_a_turn_stands_is_told_at_once() -> None:
    bus = EventBus()
    watcher = bus.watch("s")
    bus.announce({"s": True})
    assert await watcher.wait(0)


async def test_other_news_wait_for_more_and_wake_once() -> None:
    bus = EventBus()
    watcher = bus.watch("s")
    bus.announce({"s": False})
    assert not await watcher.wait(0)
    bus.announce({"s": False})
    assert await watcher.wait(LONG_S)
    watcher.clear()
    assert not await watcher.wait(GATHER_S * 2)


async def test_waiting_news_go_along_with_what_is_told_at_once() -> None:
    bus = EventBus()
    watcher = bus.watch("s")
    bus.announce({"s": False})
    bus.announce({"s": True})
    assert await watcher.wait(0)
    watcher.clear()
    assert not await watcher.wait(GATHER_S * 2)


async def test_news_that_came_while_reading_are_not_lost() -> None:
    bus = EventBus()
    watcher = bus.watch("s")
    watcher.clear()
    bus.announce({"s": False})
    assert await watcher.wait(LONG_S)


async def test_only_the_watchers_of_a_session_hear_of_it_and_all_of_the_end() -> None:
    bus = EventBus()
    one, other = bus.watch("s1"), bus.watch("s2")
    bus.announce({"s1": True, "s3": True})
    assert await one.wait(0)
    assert not await other.wait(0)
    one.clear()
    bus.unwatch("s2", other)
    bus.wake_all()
    assert await one.wait(0)
    assert not await other.wait(0)


async def test_a_watcher_that_left_keeps_no_timer() -> None:
    bus = EventBus()
    watcher = bus.watch("s")
    bus.announce({"s": False})
    bus.unwatch("s", watcher)
    assert not await watcher.wait(GATHER_S * 2)
