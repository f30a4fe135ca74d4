"""Spend caps of the direct route: what is counted, shared, reserved and refused (model-executor 13.1)."""

import asyncio
import sqlite3
import subprocess
import sys

import pytest

from services.common.calls import WorkKey
from services.model_executor.direct.caps import Cap, Cost
from services.model_executor.direct.host_clock import Moment
from services.model_executor.direct.store import CallStore, Wanted
from services.model_executor.executor import CallAborted
from tests.common.support import BOUND_S, until
from tests.doubles.providers import anthropic, anthropic_text, delta, held, openai_text, status, stream
from tests.model_executor.direct import HI, messages, of, openai
from tests.model_executor.support import CANCEL

PRICED = "price = {input=1000, output=1000, cache_read=1000}"
"""With the doubles' usage of 60 + 40 + 10 tokens a call costs 0.11 USD."""


def caps(*lines):
    return "[caps]\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("cap", "same", "other"),
    [
        ("turn_usd = 0.2", {}, {"turn_id": "t2"}),
        ("session_usd = 0.2", {"turn_id": "t2"}, {"session_id": "s2"}),
        ("day_usd = 0.2", {"session_id": "s2"}, None),
        ("turn_tokens = 200", {}, {"turn_id": "t2"}),
        ("session_tokens = 200", {"turn_id": "t2"}, {"session_id": "s2"}),
        ("day_tokens = 200", {"session_id": "s2"}, None),
    ],
)
@pytest.mark.parametrize("made", [openai, messages])
async def test_a_cap_stops_its_scope_and_no_other(tmp_path, made, cap, same, other):
    reply = openai_text() if made is openai else anthropic(anthropic_text())
    async with made(reply, store=CallStore(tmp_path / "s"), model=PRICED, after=caps(cap)) as it:
        for number in range(2):  # 0, then 0.11 of 0.2
            assert (await it.ask(effect_id=f"e{number}"))["output"]
        refused = await it.ask(effect_id="e2", **same)
        assert of(refused) == ("budget_exhausted", False)
        name, limit = cap.split(" = ")
        assert f"The cap caps.{name} is reached: {limit} " in refused["message"]
        assert "spent" in refused["message"]
        assert len(it.double.requests) == 2
        if other is not None:
            assert (await it.ask(effect_id="e3", **other))["output"]


async def test_the_refusal_names_cap_amounts_and_scope(tmp_path):
    async with openai(
        openai_text(), store=CallStore(tmp_path / "s"), model=PRICED, after=caps("session_usd = 0.1")
    ) as it:
        await it.ask()
        message = (await it.ask(effect_id="e2"))["message"]
        assert message == (
            "The cap caps.session_usd is reached: 0.1 USD for this session (s), 0.11 spent and 0 reserved for 0 "
            "calls in flight. Raise caps.session_usd in the model configuration to go on."
        )
        # The same effect keeps its refusal; it was never started.
        assert (await it.ask(effect_id="e2"))["message"] == message


async def test_a_cap_of_nothing_lets_nothing_through(tmp_path):
    async with openai(openai_text(), store=CallStore(tmp_path / "s"), after=caps("day_tokens = 0")) as it:
        assert of(await it.ask()) == ("budget_exhausted", False)
        assert it.double.requests == []


async def test_a_burst_just_below_a_cap_passes_and_what_would_surely_be_over_it_does_not(tmp_path):
    go = asyncio.Event()
    replies = [openai_text(), held(go, openai_text())]
    async with (
        asyncio.timeout(BOUND_S),
        openai(
            *replies, store=CallStore(tmp_path / "s"), model=PRICED, after=caps("session_usd = 0.5")
        ) as it,
    ):
        await it.ask(effect_id="first")  # 0.11 spent, and the average
        burst = [asyncio.ensure_future(it.ask(effect_id=f"e{n}")) for n in range(4)]
        await until(lambda: len(it.double.requests) == 5)
        over = await it.ask(effect_id="over")  # 0.11 + 4 × 0.11 of 0.5
        assert of(over) == ("budget_exhausted", False)
        assert "0.11 spent and 0.44 reserved for 4 calls in flight" in over["message"]
        go.set()
        assert all("output" in outcome for outcome in await asyncio.gather(*burst))
        assert len(it.double.requests) == 5


async def test_before_the_first_answer_a_call_in_flight_counts_as_its_prompt(tmp_path):
    go = asyncio.Event()
    tokens = len(HI) / 4
    async with (
        asyncio.timeout(BOUND_S),
        openai(
            held(go, openai_text()),
            store=CallStore(tmp_path / "s"),
            after=caps(f"day_tokens = {1.5 * tokens}"),
        ) as it,
    ):
        running = [asyncio.ensure_future(it.ask(effect_id=f"e{n}")) for n in range(2)]
        await until(lambda: len(it.double.requests) == 2)
        over = await it.ask(effect_id="over")
        assert f"{2 * tokens:.6g} reserved for 2 calls" in over["message"]
        go.set()
        await asyncio.gather(*running)


async def test_failures_and_cancels_give_back_what_they_reserved(tmp_path):
    stalled = stream([delta(content="x")], end="stall")
    failing = status(400, {"error": {"message": "no"}})
    async with (
        asyncio.timeout(BOUND_S),
        openai(
            failing,
            stalled,
            openai_text(),
            store=CallStore(tmp_path / "s"),
            model=PRICED,
            after=caps("session_usd = 0.11"),
        ) as it,
    ):
        assert of(await it.ask(effect_id="failed")) == ("invalid_request", False)
        cancelled = asyncio.ensure_future(it.ask(effect_id="cancelled"))
        await until(lambda: len(it.double.requests) == 2)
        await it.executor.stop(WorkKey("t", "s", "cancelled"), CANCEL, None)
        with pytest.raises(CallAborted):
            await cancelled
        await until(lambda: not it.executor._tasks)
        assert (await it.ask(effect_id="fine"))["output"]
        assert of(await it.ask(effect_id="over")) == ("budget_exhausted", False)


async def test_answers_that_are_failures_and_answers_without_usage_are_spent_too(tmp_path):
    filtered = stream([delta(content="x"), delta("content_filter", usage={"prompt_tokens": 70})])
    unknown = stream([delta(content="x"), delta("stop")])
    async with openai(
        filtered, unknown, store=CallStore(tmp_path / "s"), after=caps("session_tokens = 1000")
    ) as it:
        assert of(await it.ask(effect_id="e1")) == ("content_policy", False)
        await it.ask(effect_id="e2")
    with sqlite3.connect(tmp_path / "s") as db:
        [(spent,)] = db.execute("SELECT tokens FROM spent WHERE scope = 'session'").fetchall()
    db.close()
    assert 70 + len(HI) / 4 < spent < 70 + len(HI) / 4 + 200


async def test_a_model_without_a_price_is_refused_while_a_usd_cap_is_set(tmp_path):
    call = HI[:-1] + ', "model": {"id": "p/other"}}'
    async with openai(
        openai_text(), store=CallStore(tmp_path / "s"), model=PRICED, after=caps("day_usd = 1")
    ) as it:
        outcome = await it.ask(call)
        assert of(outcome) == ("invalid_request", False)
        assert "p/other has no price" in outcome["message"]
        assert it.double.requests == []


class Days:
    def __init__(self):
        self.wall = 0

    def now(self):
        return Moment(self.wall, "b", self.wall)


def wanted(effect="e", turn="turn", estimate=100.0):
    return Wanted(("t", "s", effect), b"d", 1, turn=turn, estimate=Cost(0, estimate))


async def test_replicas_of_one_host_share_what_is_spent_and_reserved(tmp_path):
    cap = [Cap("day", "tokens", 150)]
    first, second = (CallStore(tmp_path / "s", caps=cap) for _ in range(2))
    assert (await first.begin(wanted("a"))).verdict == "fresh"
    assert (await second.begin(wanted("b"))).verdict == "fresh"  # 100 reserved
    begun = await second.begin(wanted("c"))  # 200 reserved
    assert begun.verdict == "capped"
    await first.finish(("t", "s", "a"), "x", Cost(0, 40))
    begun = await second.begin(wanted("c"))  # 40 spent, one in flight at the average of 40
    assert begun.verdict == "fresh"
    await first.close()
    await second.close()


async def test_what_a_dead_process_had_reserved_counts_no_more(tmp_path):
    cap = [Cap("day", "tokens", 150)]
    dead, alive = (CallStore(tmp_path / "s", caps=cap) for _ in range(2))
    await dead.begin(wanted("a"))
    await dead.begin(wanted("b"))
    assert (await alive.begin(wanted("c"))).verdict == "capped"
    await dead.close()
    assert (await alive.begin(wanted("c"))).verdict == "fresh"
    await alive.close()


async def test_a_day_begins_at_midnight_utc(tmp_path):
    clock = Days()
    store = CallStore(tmp_path / "s", caps=[Cap("day", "tokens", 10)], clock=clock)
    clock.wall = 86_400_000 - 1
    await store.begin(wanted("a"))
    await store.finish(("t", "s", "a"), "x", Cost(0, 10))
    begun = await store.begin(wanted("b"))
    assert begun.verdict == "capped"
    assert "(1970-01-01)" in begun.reason
    clock.wall += 1
    assert (await store.begin(wanted("b"))).verdict == "fresh"
    await store.close()


async def test_the_average_is_that_of_the_last_20_calls(tmp_path):
    store = CallStore(tmp_path / "s", caps=[Cap("turn", "tokens", 1e9)])
    for number in range(25):
        await store.begin(wanted(str(number)))
        await store.finish(("t", "s", str(number)), "x", Cost(0, 1000 if number < 5 else 10))
    await store.begin(wanted("flying"))
    store._caps = (Cap("turn", "tokens", 5200 + 10),)
    begun = await store.begin(wanted("over"))
    assert begun.verdict == "capped"
    assert "5200 spent and 10 reserved for 1 call in" in begun.reason
    await store.close()


async def test_a_call_is_spent_once_however_often_its_outcome_is_written(tmp_path):
    store = CallStore(tmp_path / "s", caps=[Cap("turn", "tokens", 100)])
    await store.begin(wanted("a"))
    for _ in range(3):
        await store.finish(("t", "s", "a"), "x", Cost(0, 40))
    assert (await store.begin(wanted("b"))).verdict == "fresh"
    await store.close()


IN_ITS_OWN_PROCESS = """
import asyncio, sys
from pathlib import Path
from services.model_executor.direct.caps import Cap, Cost
from services.model_executor.direct.store import CallStore, Wanted
async def call(store, name):
    begun = await store.begin(Wanted(("t", "s", name), b"d", 1, turn="x", estimate=Cost(0, 10)))
    if begun.verdict == "fresh":
        await store.finish(("t", "s", name), "y", Cost(0, 10))
    return begun.verdict
async def main():
    store = CallStore(Path(sys.argv[1]), caps=(Cap("day", "tokens", 1000),))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(20):
        names = [f"{sys.argv[2]}-{number}-{at}" for at in range(4)]
        print(*await asyncio.gather(*(call(store, name) for name in names)), flush=True)
    await store.close()
asyncio.run(main())
"""


@pytest.mark.system
def test_processes_that_share_a_store_reach_a_cap_together_and_none_goes_over_it_by_more_than_is_in_flight(
    tmp_path,
):
    command = [sys.executable, "-c", IN_ITS_OWN_PROCESS, str(tmp_path / "s")]
    processes = [
        subprocess.Popen([*command, str(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        verdicts = [word for process in processes for word in process.communicate(timeout=60)[0].split()]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert set(verdicts) == {"fresh", "capped"}
    assert len(verdicts) == 240
    assert 100 <= verdicts.count("fresh") < 100 + 12
