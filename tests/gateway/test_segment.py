from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Answer,
    Completed,
    EffectRequest,
    EngineRefused,
    SegmentInput,
    Step,
)
from gateway.executors.contract import AbortSignal
from gateway.runs.segment import SegmentDriver
from tests.gateway.support import PlannedEngine, at_once, effect, one_after_another, settle
from tests.gateway.virtual_time import virtual_time

SEGMENT = SegmentInput(manifest={}, checkpoint={})
CANCEL = Abort(AbortKind.CANCEL, "Turn cancelled")


class Asked:
    """Takes effects and answers them when told."""

    def __init__(self) -> None:
        self.open: dict[str, Callable[[Answer], None]] = {}
        self.order: list[str] = []
        self.at_once: Answer | None = None

    def __call__(self, request: EffectRequest, answered: Callable[[Answer], None]) -> None:
        self.order.append(request.effect_id)
        if self.at_once is not None:
            answered(self.at_once)
        else:
            self.open[request.effect_id] = answered


def value(number: int) -> Completed:
    return Completed({"value": number})


@virtual_time
async def test_answers_may_come_in_any_order_and_at_once():
    engine, asked = PlannedEngine(at_once(effect("a"), effect("b"))(SEGMENT)), Asked()
    running = asyncio.create_task(SegmentDriver(engine, AbortSignal(), asked).run())
    await settle()
    asked.open["b"](value(2))
    asked.open["a"](value(1))
    assert (await running).output == {"b": 2, "a": 1}
    asked.at_once = value(3)
    again = PlannedEngine(one_after_another(effect("c"), effect("d"))(SEGMENT))
    assert (await SegmentDriver(again, AbortSignal(), asked).run()).output == {"c": 3, "d": 3}


@virtual_time
async def test_the_engine_hears_of_an_abort_before_the_answers_that_come_with_it():
    engine, asked, signal = PlannedEngine(at_once(effect("a"))(SEGMENT)), Asked(), AbortSignal()
    running = asyncio.create_task(SegmentDriver(engine, signal, asked).run())
    await settle()
    signal.listen(lambda abort: asked.open["a"](AbortedEffect(abort)))
    signal.set(CANCEL)
    await running
    assert engine.events[1:] == [CANCEL, ("a", AbortedEffect(CANCEL))]


@virtual_time
async def test_an_abort_before_the_start_is_told_first():
    engine, asked, signal = PlannedEngine(at_once()(SEGMENT)), Asked(), AbortSignal()
    signal.set(CANCEL)
    await SegmentDriver(engine, signal, asked).run()
    assert engine.events[0] == CANCEL


@virtual_time
async def test_time_comes_in_as_milliseconds():
    engine, asked = PlannedEngine(at_once()(SEGMENT)), Asked()
    await SegmentDriver(engine, AbortSignal(), asked).run()
    assert engine.events == [("start", asyncio.get_running_loop().time() * 1000)]


@virtual_time
async def test_a_refusal_comes_out_and_no_listener_is_left():
    class Refusing:
        def start(self, now_ms: float) -> Step:
            raise EngineRefused("state.invalid", "no")

        def resolve(self, *_: Any) -> Step:
            raise AssertionError

        def abort(self, abort: Abort) -> Step:
            raise AssertionError

    signal = AbortSignal()
    with pytest.raises(EngineRefused):
        await SegmentDriver(Refusing(), signal, Asked()).run()
    assert signal._listeners == []
