"""A direct call's process is killed at every moment of the call: at most one request, and a clear end."""

import asyncio
import contextlib
import sqlite3

import grpc
import pytest

from tests.common.support import until
from tests.doubles.http import serving
from tests.doubles.providers import SSE, ProviderDouble, chunk, delta, openai_text, status, stream
from tests.model_executor.direct import HI, KEY, config_text
from tests.system.executor_process import direct_settings, executor_process, request_for

pytestmark = [pytest.mark.faults, pytest.mark.system, pytest.mark.timeout(120)]


def settings(folder, provider, **more):
    text = config_text(provider.origin, "openai-completions")
    return direct_settings(folder, text, KEY=KEY, **more)


async def lost(pending):
    with pytest.raises(grpc.aio.AioRpcError):
        await pending


def is_lost(outcome):
    return outcome["code"] == "transient" and "may have been billed" in outcome["message"]


@contextlib.contextmanager
def locked(path):
    """Somebody else writes the store and takes long."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


async def warm(executor, provider):
    """The SDK is loaded and the store is there; what that asked is not counted."""
    await executor.call(request_for(HI, "warm"))
    provider.replies = provider.replies[1:] or provider.replies
    provider.requests.clear()
    provider.arrived.clear()
    provider.answered = 0


async def test_killed_before_the_store_knows_it_the_call_never_started(tmp_path):
    async with serving(ProviderDouble(replies=[openai_text()])) as provider:
        given = settings(tmp_path, provider)
        async with executor_process(tmp_path, **given) as first:
            await warm(first, provider)
            with locked(tmp_path / "model" / "state.sqlite"):
                pending = asyncio.ensure_future(first.call(request_for(HI)))
                await first.busy()
                first.kill()
                await lost(pending)
        assert provider.requests == []
        async with executor_process(tmp_path, **given) as second:
            assert (await second.call(request_for(HI, rejoin=True)))["output"]
        assert len(provider.requests) == 1


async def _head_only(executor, wire):
    await wire.head(200, SSE)


async def _half(executor, wire):
    await _head_only(executor, wire)
    await chunk(wire, b'data: {"choices":[{"delta":{"content":"he"}}]}\n\n')


async def _nothing(executor, wire):
    pass


@pytest.mark.parametrize("moment", [_nothing, _head_only, _half], ids=["asked", "answered", "streaming"])
async def test_killed_while_the_provider_works_the_call_is_lost_and_never_asked_again(tmp_path, moment):
    processes = []
    told = asyncio.Event()

    async def reply(wire):
        await moment(processes[0], wire)
        processes[0].kill()
        told.set()
        await asyncio.Event().wait()

    async with serving(ProviderDouble(replies=[openai_text(), reply])) as provider:
        given = settings(tmp_path, provider)
        async with executor_process(tmp_path, **given) as first:
            await first.call(request_for(HI, "warm"))
            processes.append(first)
            await lost(first.call(request_for(HI)))
            assert told.is_set()
        provider.replies = [openai_text()]
        async with executor_process(tmp_path, **given) as second:
            for rejoin in (True, False):
                assert is_lost(await second.call(request_for(HI, rejoin=rejoin)))
            assert (await second.call(request_for(HI, "next")))["output"]
        assert len(provider.requests) == 3


async def test_killed_between_the_answer_and_the_store_the_call_is_lost_and_never_asked_again(tmp_path):
    path = tmp_path / "model" / "state.sqlite"
    go = asyncio.Event()

    async def reply(wire):
        await go.wait()
        await openai_text()(wire)

    async with serving(ProviderDouble(replies=[openai_text(), reply])) as provider:
        given = settings(tmp_path, provider)
        async with executor_process(tmp_path, **given) as first:
            await warm(first, provider)
            pending = asyncio.ensure_future(first.call(request_for(HI)))
            await provider.arrived.wait()
            with locked(path):
                go.set()
                # The whole answer is sent, the store refuses to hear of it.
                await until(lambda: provider.answered == 1)
                for _ in range(5):  # its loop has seen the answer by then
                    assert (await first.stats()).in_flight
                first.kill()
                await lost(pending)
        async with executor_process(tmp_path, **given) as second:
            assert is_lost(await second.call(request_for(HI, rejoin=True)))
        assert len(provider.requests) == 1


async def test_killed_after_the_outcome_was_stored_the_next_process_gives_it(tmp_path):
    async with serving(ProviderDouble(replies=[openai_text()])) as provider:
        given = settings(tmp_path, provider)
        async with executor_process(tmp_path, **given) as first:
            outcome = await first.call(request_for(HI))
            first.kill()
        async with executor_process(tmp_path, **given) as second:
            assert await second.call(request_for(HI, rejoin=True)) == outcome
        assert len(provider.requests) == 1


async def test_killed_between_attempts_the_call_is_lost_after_the_attempts_it_made(tmp_path):
    failing = status(500, {"error": {"message": "x"}}, {"retry-after": "30"})
    async with serving(ProviderDouble(replies=[openai_text(), failing])) as provider:
        given = settings(tmp_path, provider)
        async with executor_process(tmp_path, **given) as first:
            await warm(first, provider)
            pending = asyncio.ensure_future(first.call(request_for(HI)))
            await until(lambda: any("model_attempt_failed" in line for line in first.lines))
            first.kill()
            await lost(pending)
        provider.replies = [openai_text()]
        async with executor_process(tmp_path, **given) as second:
            assert is_lost(await second.call(request_for(HI, rejoin=True)))
        assert len(provider.requests) == 1


async def test_two_processes_over_one_store_ask_once_and_name_each_other(tmp_path):
    go = asyncio.Event()

    async def reply(wire):
        await go.wait()
        await openai_text()(wire)

    async with serving(ProviderDouble(replies=[reply])) as provider:
        given = settings(tmp_path, provider)
        async with (
            executor_process(tmp_path, **given) as first,
            executor_process(tmp_path, **given) as second,
        ):
            running = asyncio.ensure_future(first.call(request_for(HI)))
            await provider.arrived.wait()
            pointed = await second.call(request_for(HI, rejoin=True))
            assert pointed.WhichOneof("result") == "elsewhere"
            assert pointed.elsewhere.address == first.address
            go.set()
            outcome = await running
            assert await second.call(request_for(HI, rejoin=True)) == outcome
        assert len(provider.requests) == 1


async def test_many_calls_at_two_processes_are_asked_once_each(tmp_path):
    """Both get every call at the same moment; whichever is first in the store asks."""
    async with serving(ProviderDouble(replies=[stream([delta(content="x"), delta("stop")])])) as provider:
        given = settings(tmp_path, provider)
        async with (
            executor_process(tmp_path, **given) as first,
            executor_process(tmp_path, **given) as second,
        ):
            for process in (first, second):
                await warm(process, provider)
            ids = [f"e{number}" for number in range(40)]

            async def both(effect_id):
                answers = await asyncio.gather(
                    first.call(request_for(HI, effect_id)), second.call(request_for(HI, effect_id))
                )
                return [answer for answer in answers if isinstance(answer, dict)]

            found = await asyncio.gather(*(both(effect_id) for effect_id in ids))
            assert all(answers and all("output" in answer for answer in answers) for answers in found)
        assert len(provider.requests) == len(ids)
