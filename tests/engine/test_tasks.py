from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Answer,
    Completed,
    EffectRequest,
    HostError,
    Pending,
    RecordedOutcome,
    SegmentResult,
    Uncertain,
)
from gateway.engine.failures import (
    EngineFailure,
    HostFailure,
    RunStopped,
    Suspended,
    WorkFailed,
    failure_code,
)
from gateway.engine.host import Host
from gateway.engine.segment import Prepared, Segment
from gateway.engine.tasks import TURN, Ask, Tasks, Within, Work, together

CANCEL = Abort(AbortKind.CANCEL, "stop")


def effect(name: str) -> EffectRequest:
    return EffectRequest(name, "tool", {}, f"hash of {name}")


def ask(name: str) -> Work[Any]:
    return (yield Ask(effect(name)))


def names(effects: tuple[EffectRequest, ...]) -> list[str]:
    return [asked.effect_id for asked in effects]


def test_works_start_in_order_and_give_their_results_in_order() -> None:
    def work() -> Work[list[Any]]:
        settled = yield from together([ask("a"), ask("b"), ask("c")])
        return [one.get() for one in settled]

    tasks = Tasks(work())
    assert names(tasks.run()) == ["a", "b", "c"]
    for name in ("c", "a", "b"):
        assert tasks.outcome is None
        tasks.answer(name, Completed({"value": name}))
        assert tasks.run() == ()
    assert tasks.outcome is not None
    assert [answer.outcome["value"] for answer in tasks.outcome.get()] == ["a", "b", "c"]


def test_a_failed_work_does_not_stop_the_others() -> None:
    def fails() -> Work[int]:
        yield TURN
        raise EngineFailure("a.b", "no")

    def work() -> Work[Any]:
        return (yield from together([fails(), ask("a")]))

    tasks = Tasks(work())
    assert names(tasks.run()) == ["a"]
    tasks.answer("a", Pending())
    tasks.run()
    assert tasks.outcome is not None
    first, second = tasks.outcome.get()
    assert isinstance(first.failure, EngineFailure)
    with pytest.raises(EngineFailure):
        first.get()
    assert isinstance(second.get(), Pending)


def test_nothing_together_is_nothing() -> None:
    def work() -> Work[list[Any]]:
        return (yield from together([]))

    tasks: Tasks[list[Any]] = Tasks(work())
    assert tasks.run() == ()
    assert tasks.outcome is not None
    assert tasks.outcome.get() == []


def test_works_within_works_interleave_by_turns() -> None:
    order: list[str] = []

    def noted(name: str, turns: int) -> Work[None]:
        for turn in range(turns):
            order.append(f"{name}{turn}")
            yield TURN

    def work() -> Work[None]:
        yield from together([noted("a", 2), together([noted("b", 1), noted("c", 1)])])  # type: ignore[list-item]

    Tasks(work()).run()
    assert order == ["a0", "a1", "b0", "c0"]


def test_an_answer_nobody_waits_for_is_refused() -> None:
    tasks = Tasks(ask("a"))
    tasks.run()
    with pytest.raises(ValueError, match="not waiting"):
        tasks.answer("b", Pending())
    tasks.answer("a", Pending())
    with pytest.raises(ValueError, match="not waiting"):
        tasks.answer("a", Pending())


def test_asks_of_one_id_are_answered_in_their_order() -> None:
    tasks = Tasks(together([ask("a"), ask("a"), ask("b"), ask("a")]))
    assert names(tasks.run()) == ["a", "a", "b", "a"]
    answers = [Completed({"value": n}) for n in range(3)]
    for answer in answers:
        tasks.answer("a", answer)
    with pytest.raises(ValueError, match="not waiting"):
        tasks.answer("a", Pending())
    tasks.answer("b", Pending())
    tasks.run()
    assert tasks.outcome is not None
    assert [one.get() for one in tasks.outcome.get()] == [answers[0], answers[1], Pending(), answers[2]]


def test_a_work_within_another_gives_its_value_or_raises_its_failure_there() -> None:
    def inner(fails: bool) -> Work[str]:
        yield Ask(effect("a"))
        if fails:
            raise WorkFailed("inner")
        return "value"

    def outer(fails: bool) -> Work[str]:
        try:
            found: str = yield Within(inner(fails))
        except WorkFailed as failure:
            answer: Any = yield Ask(effect("b"))
            return f"{failure.message}, then {answer}"
        return found

    for fails, expected in ((False, "value"), (True, "inner, then Pending()")):
        tasks = Tasks(outer(fails))
        assert names(tasks.run()) == ["a"]
        tasks.answer("a", Pending())
        if fails:
            assert names(tasks.run()) == ["b"]
            tasks.answer("b", Pending())
        tasks.run()
        assert tasks.outcome is not None
        assert tasks.outcome.get() == expected


def test_works_nest_without_pythons_stack() -> None:
    def nested(levels: int) -> Work[int]:
        if not levels:
            yield Ask(effect("deep"))
            raise WorkFailed("from below")
        found: int = yield Within(nested(levels - 1))
        return found

    tasks = Tasks(nested(50_000))
    assert names(tasks.run()) == ["deep"]
    tasks.answer("deep", Pending())
    tasks.run()
    assert tasks.outcome is not None
    assert tasks.outcome.failure is not None
    assert tasks.outcome.failure.message == "from below"


def test_a_defect_comes_out() -> None:
    def broken() -> Work[None]:
        yield TURN
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Tasks(together([broken()])).run()


# The host


class Seen:
    def __init__(self, *recorded: RecordedOutcome) -> None:
        self.observed: list[tuple[str, bool]] = []
        self.host = Host({one.effect_id: one for one in recorded}, self._observe)

    def _observe(self, asked: EffectRequest, known: bool) -> None:
        self.observed.append((asked.effect_id, known))

    def ask(self, name: str, answer: Answer | None = None) -> Completed:
        tasks = Tasks(self.host.ask(effect(name)))
        for asked in tasks.run():
            assert answer is not None
            tasks.answer(asked.effect_id, answer)
            tasks.run()
        assert tasks.outcome is not None
        return tasks.outcome.get()


def test_a_recorded_outcome_answers_without_asking() -> None:
    seen = Seen(RecordedOutcome("a", "hash of a", {"value": 1}, plain=True))
    assert seen.ask("a") == Completed({"value": 1}, plain=True)
    assert seen.observed == [("a", True)]


def test_a_recorded_outcome_of_another_hash_is_drift() -> None:
    seen = Seen(RecordedOutcome("a", "other", {"value": 1}))
    with pytest.raises(HostFailure, match="Effect identity request drift") as drift:
        seen.ask("a")
    assert drift.value.api_code == "effect_drift"
    assert seen.observed == [("a", True)]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (HostError("internal", "broke"), HostFailure),
        (AbortedEffect(CANCEL), RunStopped),
        (Pending(), Suspended),
        (Uncertain(), Suspended),
    ],
)
def test_an_answer_without_an_outcome_fails_the_ask(answer: Answer, failure: type[WorkFailed]) -> None:
    seen = Seen()
    with pytest.raises(failure):
        seen.ask("a", answer)
    assert seen.observed == [("a", False)]


def test_an_aborted_run_asks_for_nothing_and_uses_nothing_recorded() -> None:
    seen = Seen(RecordedOutcome("a", "hash of a", {"value": 1}))
    seen.host.abort = CANCEL
    with pytest.raises(RunStopped):
        seen.ask("a")
    assert seen.observed == []


def test_suspended_effects_are_named_in_the_order_they_were_asked() -> None:
    seen = Seen()
    assert seen.host.suspension() is None
    tasks = Tasks(together([seen.host.ask(effect(name)) for name in "abc"]))
    tasks.run()
    for name, answer in (("c", Pending()), ("b", Completed({})), ("a", Pending())):
        tasks.answer(name, answer)
    tasks.run()
    assert seen.host.suspension() == SegmentResult("waiting", effect_ids=("a", "c"))


def test_one_uncertain_effect_makes_all_uncertain() -> None:
    seen = Seen()
    for name, answer in (("a", Pending()), ("b", Uncertain())):
        with pytest.raises(Suspended):
            seen.ask(name, answer)
    suspension = seen.host.suspension()
    assert suspension is not None
    assert (suspension.status, suspension.effect_ids) == ("uncertain", ("a", "b"))


def test_only_an_engine_failure_keeps_its_code() -> None:
    assert failure_code(EngineFailure("a.b", "m"), "other") == "a.b"
    assert failure_code(HostFailure("effect_drift", "m"), "other") == "other"


# The segment


def test_a_segment_starts_once_and_takes_answers_only_then() -> None:
    def work() -> Work[SegmentResult]:
        yield TURN
        return SegmentResult("completed")

    def prepare(host: Host) -> Prepared:
        return Prepared(work())

    segment = Segment(Host({}, None), prepare)
    with pytest.raises(ValueError, match="not started"):
        segment.resolve("a", Pending(), 0)
    assert segment.start(0).result == SegmentResult("completed")
    with pytest.raises(ValueError, match="once"):
        segment.start(0)
