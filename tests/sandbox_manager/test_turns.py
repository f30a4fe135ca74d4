import asyncio

from services.sandbox_manager.turns import Turns
from tests.sandbox_manager.support import BOUND


async def test_turns_come_in_the_order_of_arrival_with_their_positions_told() -> None:
    turns, order = Turns(), list[str]()
    told: dict[str, list[int]] = {name: [] for name in "abc"}
    hold = asyncio.Event()

    async def work(name: str) -> None:
        async with turns.turn(told[name].append):
            order.append(name)
            await hold.wait()

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(work(name))
            await asyncio.sleep(0)
        hold.set()
    assert order == ["a", "b", "c"]
    assert told == {"a": [], "b": [1], "c": [2, 1]}
    assert len(turns) == 0


async def test_a_failure_or_a_cancelled_wait_holds_nobody_up() -> None:
    turns = Turns()
    entered, hold = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        async with turns.turn():
            entered.set()
            await hold.wait()
            raise ValueError

    async def take() -> str:
        async with turns.turn():
            return "done"

    first = asyncio.create_task(fail())
    await entered.wait()
    second, third = asyncio.create_task(take()), asyncio.create_task(take())
    await asyncio.sleep(0)
    second.cancel()
    hold.set()
    async with asyncio.timeout(BOUND):
        assert await third == "done"
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert isinstance(results[1], asyncio.CancelledError)


async def test_a_turn_that_came_to_a_cancelled_wait_is_passed_on() -> None:
    turns = Turns()

    async def take() -> None:
        async with turns.turn():
            pass

    async with turns.turn():
        waiting, next_one = asyncio.create_task(take()), asyncio.create_task(take())
        await asyncio.sleep(0)
    waiting.cancel()  # its turn has come, but it has not run since
    async with asyncio.timeout(BOUND):
        await next_one
    assert len(turns) == 0
