from __future__ import annotations

import pytest

from gateway.runs.phases import EFFECT_STEPS, RUN_STEPS, EffectPhase, RunPhase, next_phase


@pytest.mark.parametrize(
    ("steps", "phases", "first", "last"),
    [
        (EFFECT_STEPS, EffectPhase, EffectPhase.NEW, EffectPhase.ANSWERED),
        (RUN_STEPS, RunPhase, RunPhase.PREPARING, RunPhase.ENDED),
    ],
)
def test_every_phase_is_reached_and_leads_to_the_end_without_a_circle(steps, phases, first, last):
    assert set(steps) == set(phases)
    order = [first]
    for phase in order:
        order += [then for then in steps[phase] if then not in order]
    assert set(order) == set(phases)
    assert [phase for phase in phases if not steps[phase]] == [last]

    def longest(phase):
        return 1 + max((longest(then) for then in steps[phase]), default=0)

    assert longest(first) <= len(phases)


@pytest.mark.parametrize("steps", [EFFECT_STEPS, RUN_STEPS])
def test_only_steps_of_the_table_can_be_taken(steps):
    for now in steps:
        for then in steps:
            if then in steps[now]:
                assert next_phase(steps, now, then) is then
            else:
                with pytest.raises(AssertionError):
                    next_phase(steps, now, then)
