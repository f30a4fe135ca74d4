"""Started calls outlive their process and are never sent again (model-executor 13.7)."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from services.model_executor.direct.caps import Cap, Cost
from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.host_clock import Moment
from services.model_executor.direct.route import DirectRoute
from services.model_executor.direct.store import KEEP_MS, CallStore, StoreFailed, Wanted
from services.model_executor.executor import ModelExecutor
from tests.common.support import BOUND_S, until
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble, held, openai_text
from tests.model_executor.direct import HI, KEY, config_text, of, openai
from tests.model_executor.support import call_of, document, user


class SetClock:
    """The host's clocks as a test sets them."""

    def __init__(self):
        self.wall, self.boot, self.up = 10**12, "first", 0

    def now(self):
        return Moment(self.wall, self.boot, self.up)

    def passes(self, ms):
        self.wall += ms
        self.up += ms


def another(double, path, **changes):
    """The executor of a new process: a store of its own over the same file."""
    text = config_text(double.origin, "openai-completions")
    for name, value in changes.items():
        text = f"{name} = {value}\n{text}"
    return ModelExecutor(DirectRoute(read_config(text, {"KEY": KEY}), CallStore(path)))


async def asked(executor, **changes):
    async with asyncio.timeout(BOUND_S):
        return json.loads(await executor.call(call_of(HI, **changes)))


async def test_a_finished_call_is_answered_by_the_next_process(tmp_path):
    path = tmp_path / "model" / "state.sqlite"
    async with openai(openai_text(), store=CallStore(path)) as it:
        first = await it.ask()
        second = another(it.double, path)
        assert await asked(second) == first
        conflict = json.loads(await second.call(call_of(document(user("other")))))
        await second.close()
        assert "changed under the same effect id" in conflict["message"]
        assert len(it.double.requests) == 1
        assert path.stat().st_mode & 0o777 == 0o600


async def test_a_stored_outcome_is_kept_for_less_than_30_minutes_and_a_lower_epoch_is_stale(tmp_path):
    clock = SetClock()
    store = CallStore(tmp_path / "s", clock=clock)
    key = ("t", "s", "e")
    assert (await store.begin(Wanted(key, b"d", 3))).verdict == "fresh"
    await store.finish(key, "x")
    assert (await store.begin(Wanted(key, b"d", 2))).verdict == "stale"
    assert (await store.begin(Wanted(key, b"o", 3))).verdict == "conflict"
    clock.passes(KEEP_MS - 1)
    assert (await store.begin(Wanted(key, b"d", 4))).outcome == "x"
    assert (await store.begin(Wanted(key, b"d", 3))).verdict == "stale"
    clock.passes(1)
    assert (await store.begin(Wanted(key, b"d", 3))).verdict == "fresh"
    await store.close()


async def test_a_changed_wall_clock_neither_drops_nor_keeps_an_outcome(tmp_path):
    clock = SetClock()
    store = CallStore(tmp_path / "s", clock=clock)
    key = ("t", "s", "e")
    await store.begin(Wanted(key, b"d", 1))
    await store.finish(key, "x")
    for jump in (30 * 24 * 3600 * 1000, -60 * 24 * 3600 * 1000):
        clock.wall += jump
        assert (await store.begin(Wanted(key, b"d", 1))).verdict == "kept"
    clock.passes(KEEP_MS)
    assert (await store.begin(Wanted(key, b"d", 1))).verdict == "fresh"
    # A call in flight stays known whatever the clock says, also to the next process that opens the file.
    clock.wall += 30 * 24 * 3600 * 1000
    other = CallStore(tmp_path / "s", clock=clock)
    assert (await other.begin(Wanted(key, b"d", 1))).verdict == "elsewhere"
    await other.close()
    await store.close()


async def test_what_was_stored_before_a_restart_of_the_machine_ages_by_the_wall_clock(tmp_path):
    clock = SetClock()
    store = CallStore(tmp_path / "s", clock=clock)
    key = ("t", "s", "e")
    await store.begin(Wanted(key, b"d", 1))
    await store.finish(key, "x")
    clock.boot, clock.up = "second", 5
    clock.wall += KEEP_MS - 1
    assert (await store.begin(Wanted(key, b"d", 1))).verdict == "kept"
    clock.wall += 1
    assert (await store.begin(Wanted(key, b"d", 1))).verdict == "fresh"
    await store.close()


async def test_outcomes_are_swept_by_age_number_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("services.model_executor.direct.store.CALLS_PER_SWEEP", 1)
    monkeypatch.setattr("services.model_executor.direct.store.MAX_KEPT", 3)
    monkeypatch.setattr("services.model_executor.direct.store.MAX_KEPT_BYTES", 100)
    clock = SetClock()
    store = CallStore(tmp_path / "s", clock=clock)

    def ids():
        with sqlite3.connect(tmp_path / "s") as db:
            found = [row[0] for row in db.execute("SELECT effect FROM calls ORDER BY wall_ms")]
        db.close()
        return found

    async def call(effect, size):
        clock.passes(1)
        await store.begin(Wanted(("t", "s", effect), b"d", 1))
        await store.finish(("t", "s", effect), "x" * size)

    for number in range(5):
        await call(str(number), 1)
    assert ids() == ["2", "3", "4"]
    await call("big", 99)
    assert ids() == ["4", "big"]
    clock.passes(KEEP_MS)
    await call("new", 1)
    assert ids() == ["new"]
    await store.close()


async def test_the_file_of_a_newer_program_is_not_touched(tmp_path):
    with sqlite3.connect(tmp_path / "s") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    store = CallStore(tmp_path / "s")
    with pytest.raises(StoreFailed, match="version 99"):
        await store.begin(Wanted(("t", "s", "e"), b"d", 1))
    await store.close()


async def test_a_cancel_where_a_call_was_found_elsewhere_leaves_it_known(tmp_path):
    first, second = CallStore(tmp_path / "s"), CallStore(tmp_path / "s")
    first.listens("unix:/first")
    key = ("t", "s", "e")
    await first.begin(Wanted(key, b"d", 1))
    found = await second.begin(Wanted(key, b"d", 2))
    assert (found.verdict, found.instance, found.address) == ("elsewhere", first.instance, "unix:/first")
    await second.forget(key)
    await second.finish(key, "not mine")
    assert (await second.begin(Wanted(key, b"d", 2))).verdict == "elsewhere"
    await first.finish(key, "mine")
    assert (await second.begin(Wanted(key, b"d", 2))).outcome == "mine"
    await first.close()
    await second.close()
    assert list(tmp_path.glob("*.lock")) == []


async def test_a_call_of_a_living_process_is_not_started_by_another(tmp_path):
    go = asyncio.Event()
    async with openai(held(go, openai_text()), store=CallStore(tmp_path / "s")) as it:
        running = asyncio.ensure_future(it.ask())
        await it.double.arrived.wait()
        other = another(it.double, tmp_path / "s")
        outcome = await asked(other, rejoin=True)
        assert of(outcome) == ("transient", True)
        assert "another model-executor" in outcome["message"]
        go.set()
        assert (await running)["output"]
        assert (await asked(other))["output"]
        await other.close()
        assert len(it.double.requests) == 1


@pytest.mark.spec("model-executor:15.50")
async def test_a_killed_process_s_call_is_lost_and_never_sent_again(tmp_path):
    go = asyncio.Event()
    async with serving(ProviderDouble(replies=[held(go, openai_text())])) as double, asyncio.timeout(60):
        config = tmp_path / "model.toml"
        config.write_text(config_text(double.origin, "openai-completions"))
        code = (
            "import asyncio, sys\n"
            "from pathlib import Path\n"
            "from tests.model_executor.support import call_of\n"
            "from tests.model_executor.direct import HI\n"
            "from services.model_executor.direct.config_file import load_config\n"
            "from services.model_executor.direct.route import DirectRoute\n"
            "from services.model_executor.direct.store import CallStore\n"
            "from services.model_executor.executor import ModelExecutor\n"
            "async def main():\n"
            "    route = DirectRoute(load_config(sys.argv[1], {'KEY': 'k' * 9}), CallStore(Path(sys.argv[2])))\n"
            "    await ModelExecutor(route).call(call_of(HI))\n"
            "asyncio.run(main())\n"
        )
        child = subprocess.Popen([sys.executable, "-c", code, str(config), str(tmp_path / "s")])
        try:
            await double.arrived.wait()
        finally:
            os.kill(child.pid, signal.SIGKILL)
            await asyncio.to_thread(child.wait, 20)
        go.set()
        for rejoin in (True, False):
            executor = another(double, tmp_path / "s")
            outcome = await asked(executor, rejoin=rejoin)
            await executor.close()
            assert of(outcome) == ("transient", True)
            assert "may have been billed" in outcome["message"]
        assert len(double.requests) == 1


async def test_the_end_of_a_process_stores_the_failure_of_what_still_runs(tmp_path):
    async with openai(held(asyncio.Event(), openai_text()), store=CallStore(tmp_path / "s")) as it:
        running = asyncio.ensure_future(it.ask())
        await it.double.arrived.wait()
        await it.executor.close()
        running.cancel()
        other = another(it.double, tmp_path / "s")
        outcome = await asked(other)
        await other.close()
        assert of(outcome) == ("transient", True)
        assert "stopped during the call" in outcome["message"]
        assert len(it.double.requests) == 1


async def test_a_cancelled_call_may_be_asked_anew(tmp_path):
    from services.common.calls import WorkKey
    from services.model_executor.executor import CallAborted
    from tests.model_executor.support import CANCEL

    go = asyncio.Event()
    async with openai(held(go, openai_text()), openai_text(), store=CallStore(tmp_path / "s")) as it:
        running = asyncio.ensure_future(it.ask())
        await it.double.arrived.wait()
        await it.executor.stop(WorkKey("t", "s", "e"), CANCEL, None)
        with pytest.raises(CallAborted):
            await running
        await until(lambda: not it.executor._tasks)
        assert (await it.ask())["output"]


async def test_without_a_shared_store_a_re_sent_call_that_is_not_known_is_lost(tmp_path):
    async with serving(ProviderDouble(replies=[openai_text()])) as double:
        for shared, requests in (("false", 0), ("true", 1)):
            executor = another(double, tmp_path / shared, shared_state=shared)
            outcome = await asked(executor, rejoin=True)
            await executor.close()
            assert len(double.requests) == requests
            assert ("output" in outcome) is bool(requests)


async def test_a_store_that_cannot_be_used_sends_nothing(tmp_path):
    path = tmp_path / "s"
    path.write_text("no database" * 100)
    async with openai(openai_text(), store=CallStore(path)) as it:
        assert of(await it.ask()) == ("transient", True)
        assert it.double.requests == []


async def test_no_content_is_stored_but_the_outcome(tmp_path):
    async with openai(openai_text("answer"), store=CallStore(tmp_path / "s")) as it:
        await it.ask(document(user("a question of mine")))
    with sqlite3.connect(tmp_path / "s") as db:
        [row] = db.execute("SELECT * FROM calls").fetchall()
    db.close()
    assert "a question of mine" not in str(row)
    assert KEY not in str(row)


def fill(store):
    """The disk is full for this store: it may not grow by another page."""
    store._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = store._file._db.execute("PRAGMA page_count").fetchone()[0]
    store._file._db.execute(f"PRAGMA max_page_count = {pages}")


def empty(store):
    """There is room again."""
    store._file._db.execute("PRAGMA max_page_count = 1000000")


async def in_thread(store, work):
    await store._file.aside(lambda: work(store))


async def test_with_a_full_disk_nothing_is_started_that_could_not_be_noted(tmp_path):
    store = CallStore(tmp_path / "s")
    async with openai(openai_text(), store=store) as it:
        await it.ask(effect_id="first")
        await in_thread(store, fill)
        outcomes = [await it.ask(effect_id="e" * 400 + str(number)) for number in range(40)]
        refused = [outcome for outcome in outcomes if outcome.get("kind") == "failed"]
        assert refused
        assert {of(outcome) for outcome in refused} == {("transient", True)}
        assert all("nothing was sent" in outcome["message"] for outcome in refused)
        assert len(it.double.requests) == 1 + len(outcomes) - len(refused)
        # Once there is room again the same call runs.
        await in_thread(store, empty)
        assert (await it.ask(effect_id="e" * 400 + "39"))["output"]


@pytest.mark.parametrize("again", [False, True])
async def test_an_outcome_that_a_full_disk_refuses_is_given_and_never_asked_for_again(tmp_path, again):
    go = asyncio.Event()
    store = CallStore(tmp_path / "s")
    answer = openai_text("x" * 200_000)
    async with openai(held(go, answer), store=store) as it, asyncio.timeout(BOUND_S):
        running = asyncio.ensure_future(it.ask())
        await it.double.arrived.wait()
        await in_thread(store, fill)
        go.set()
        outcome = await running
        assert len(outcome["output"][0]["text"]) == 200_000
        assert await it.ask(rejoin=True) == outcome  # from memory
        if again:
            await in_thread(store, empty)
        await it.executor.close()
        second = another(it.double, tmp_path / "s")
        later = await asked(second, rejoin=True)
        await second.close()
        if again:
            # There was room again in time.
            assert later == outcome
        else:
            assert of(later) == ("transient", True)
            assert "may have been billed" in later["message"]
        assert len(it.double.requests) == 1


async def test_what_a_full_disk_refused_is_no_longer_in_flight_for_caps_once_there_is_room(tmp_path):
    store = CallStore(tmp_path / "s", caps=(Cap("session", "tokens", 1000),))
    async with asyncio.timeout(BOUND_S):
        key = ("t", "s", "e")
        await store.begin(Wanted(key, b"d", 1, estimate=Cost(0, 900)))
        await in_thread(store, fill)
        with pytest.raises(StoreFailed):
            await store.finish(key, "x" * 100_000, Cost(0, 10))
        await in_thread(store, empty)
        assert (await store.begin(Wanted(("t", "s", "f"), b"d", 1, estimate=Cost(0, 900)))).verdict == "fresh"
        assert (await store.begin(Wanted(key, b"d", 1))).outcome == "x" * 100_000
        await store.close()


ON_A_FULL_DISK = """
import asyncio, json, resource, sys
from pathlib import Path
from services.model_executor.direct.store import CallStore, StoreFailed, Wanted
async def main():
    if sys.argv[2] == "limit":
        # From now on no file grows.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    store, said = CallStore(Path(sys.argv[1])), []
    asked = ("kept", b"d", 2), ("kept", b"o", 2), ("kept", b"d", 0), ("open", b"d", 1), ("new", b"d", 1)
    for effect, digest, epoch in asked:
        try:
            begun = await store.begin(Wanted(("t", "s", effect), digest, epoch))
            said.append([begun.verdict, begun.outcome])
        except StoreFailed:
            said.append(["failed", ""])
    print(json.dumps(said))
    await store.close()
asyncio.run(main())
"""
KNOWN_ON_A_FULL_DISK = [["kept", "x"], ["conflict", ""], ["stale", ""], ["lost", ""], ["failed", ""]]


def said_on_a_full_disk(path, how):
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(path), how]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


async def two_calls(path):
    """One that ended and one that did not."""
    store = CallStore(path)
    for effect in ("kept", "open"):
        await store.begin(Wanted(("t", "s", effect), b"d", 1))
    await store.finish(("t", "s", "kept"), "x")
    return store


async def test_a_start_is_committed_with_a_wait_for_the_disk_before_anybody_goes_on(tmp_path):
    store = CallStore(tmp_path / "folder" / "s")
    await store.begin(Wanted(("t", "s", "e"), b"d", 1))
    full, wal = 2, "wal"
    pragmas = "SELECT synchronous, journal_mode FROM pragma_synchronous, pragma_journal_mode"
    assert await store._file.do(lambda db: db.execute(pragmas).fetchone()) == (full, wal)
    with sqlite3.connect(tmp_path / "folder" / "s") as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (1,)
    db.close()
    await store.close()


async def test_a_process_that_starts_on_a_full_disk_answers_what_is_kept(tmp_path):
    store = await two_calls(tmp_path / "s")
    for name in ("s", "s-wal"):
        # As a killed process leaves it: with its journal.
        shutil.copy(tmp_path / name, tmp_path / name.replace("s", "k", 1))
    await store.close()
    assert not (tmp_path / "s-wal").exists()
    for name in ("s", "k"):
        assert await asyncio.to_thread(said_on_a_full_disk, tmp_path / name, "limit") == KNOWN_ON_A_FULL_DISK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
async def test_a_small_file_system_that_is_full_still_answers_what_is_kept(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("file systems can't be mounted here")
    try:
        await (await two_calls(small / "s")).close()
        with pytest.raises(OSError, match="No space"):
            (small / "filler").write_bytes(bytes(256 * 1024))
        assert await asyncio.to_thread(said_on_a_full_disk, small / "s", "mount") == KNOWN_ON_A_FULL_DISK
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
