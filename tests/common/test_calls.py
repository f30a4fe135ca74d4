import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.calls import Conflict, Fresh, Joined, Kept, Stale, WorkKey, WorkTable
from services.common.late import Late

MIN = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(name: str = "e", session: str = "s") -> WorkKey:
    return WorkKey("t", session, name)


@pytest.fixture
def clock():
    return Clock()


def test_the_first_asker_starts_and_everybody_after_joins(clock):
    table = WorkTable(clock)
    entered = table.enter(key(), b"x", lambda: "run")
    assert entered == Fresh("run")
    assert table.enter(key(), b"x", lambda: "other") == Joined("run")
    table.finish(key(), "outcome", 7)
    assert table.enter(key(), b"x", lambda: "other") == Kept("outcome")


def test_the_same_effect_of_another_session_or_tenant_is_other_work(clock):
    table = WorkTable(clock)
    table.enter(key(), b"x", lambda: "run")
    assert isinstance(table.enter(key(session="s2"), b"x", lambda: "run2"), Fresh)
    assert isinstance(table.enter(WorkKey("t2", "s", "e"), b"x", lambda: "run3"), Fresh)


def test_another_call_under_the_same_id_is_a_conflict_while_it_runs_and_afterwards(clock):
    table = WorkTable(clock)
    table.enter(key(), b"x", lambda: "run")
    assert table.enter(key(), b"y", lambda: "run") == Conflict()
    table.finish(key(), "outcome", 1)
    assert table.enter(key(), b"y", lambda: "run") == Conflict()


def test_a_late_fingerprint_is_made_once_at_the_end_of_its_work_or_for_another_call(clock):
    made = []

    def late(value):
        return Late(lambda: made.append(value) or value)

    table = WorkTable(clock)
    table.enter(key(), late(1), lambda: "run")
    assert made == []
    table.finish(key(), "outcome", 1)
    assert made == [1]
    assert table.enter(key(), late(1), lambda: "run") == Kept("outcome")
    assert table.enter(key(), late(2), lambda: "run") == Conflict()
    table.enter(key("f"), late(3), lambda: "run")
    assert table.enter(key("f"), late(3), lambda: "") == Joined("run")
    assert made == [1, 1, 2, 3, 3]


def test_a_lower_epoch_never_joins_and_a_higher_one_takes_over(clock):
    table = WorkTable(clock)
    table.enter(key(), b"x", lambda: "run", epoch=2)
    assert table.enter(key(), b"x", lambda: "", epoch=1) == Stale()
    assert table.enter(key(), b"x", lambda: "", epoch=3) == Joined("run")
    assert table.enter(key(), b"x", lambda: "", epoch=2) == Stale()
    assert table.enter(key(), b"x", lambda: "") == Joined("run")
    table.finish(key(), "outcome", 1)
    assert table.enter(key(), b"x", lambda: "", epoch=2) == Stale()
    assert table.enter(key(), b"x", lambda: "", epoch=3) == Kept("outcome")


def test_an_outcome_is_kept_until_29_59_and_gone_at_30_00(clock):
    table = WorkTable(clock)
    table.enter(key(), b"x", lambda: "run")
    table.finish(key(), "outcome", 1)
    clock.now += 30 * MIN - 1
    assert table.kept(key()) == "outcome"
    clock.now += 1
    assert table.kept(key()) is None
    assert isinstance(table.enter(key(), b"x", lambda: "again"), Fresh)


def test_forgotten_work_starts_anew(clock):
    table = WorkTable(clock)
    table.enter(key(), b"x", lambda: "run")
    table.forget(key())
    assert table.running(key()) is None
    assert table.enter(key(), b"x", lambda: "again") == Fresh("again")


def test_the_oldest_outcomes_go_first_and_work_in_flight_never(clock):
    table = WorkTable(clock, max_kept=2)
    table.enter(key("running"), b"", lambda: "run")
    for name in ("a", "b", "c"):
        table.enter(key(name), b"", lambda: "run")
        table.finish(key(name), name, 1)
    assert [table.kept(key(name)) for name in ("a", "b", "c")] == [None, "b", "c"]
    assert table.running(key("running")) == "run"


def test_outcomes_are_bounded_in_bytes(clock):
    table = WorkTable(clock, max_kept_bytes=10)
    for name, size in (("a", 6), ("b", 4), ("c", 1)):
        table.enter(key(name), b"", lambda: "run")
        table.finish(key(name), name, size)
    assert table.kept(key("a")) is None
    assert table.kept_bytes == 5
    table.enter(key("huge"), b"", lambda: "run")
    table.finish(key("huge"), "huge", 11)
    assert table.kept(key("huge")) is None
    assert table.kept_count == 2


def test_a_second_end_of_the_same_work_changes_nothing(clock):
    table = WorkTable(clock)
    table.enter(key(), b"x", lambda: "run")
    table.finish(key(), "first", 3)
    table.finish(key(), "second", 9)
    assert table.kept(key()) == "first"
    assert table.kept_bytes == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "finish", "forget", "wait"]),
            st.sampled_from(["a", "b", "c", "d"]),
            st.integers(0, 12),
        ),
        max_size=60,
    )
)
def test_sizes_add_up_and_limits_hold_whatever_happens(steps):
    clock = Clock()
    table = WorkTable(clock, keep_s=20, max_kept=2, max_kept_bytes=15)
    started: set[str] = set()
    sizes: dict[str, int] = {}
    for step, name, number in steps:
        if step == "enter":
            entered = table.enter(key(name), b"", lambda name=name: name)
            if isinstance(entered, Fresh):
                assert name not in started, "work in flight started twice"
                started.add(name)
        elif step == "finish" and name in started:
            table.finish(key(name), name, number)
            started.discard(name)
            sizes[name] = number
        elif step == "forget" and name in started:
            table.forget(key(name))
            started.discard(name)
        else:
            clock.now += number
        kept = [one for one in "abcd" if table.kept(key(one)) is not None]
        assert table.kept_bytes == sum(sizes[one] for one in kept)
        assert table.kept_count == len(kept) <= 2
        assert table.kept_bytes <= 15
        assert set(table.runs()) == started
