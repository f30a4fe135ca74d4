"""The worked traces: every document, hash and end, run as a core runs them that answers nothing at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.contract import RecordedOutcome
from protocol import jsjson
from protocol.canonical import manifest_hash, request_hash
from tests.engine.flow.support import PREFIX, checkpoint, run

TRACES: list[Any] = json.loads((Path(__file__).parent / "traces.json").read_text())
WHOLE = [pytest.param(trace, id=trace["name"]) for trace in TRACES if "effects" in trace]


@pytest.mark.parametrize("trace", WHOLE)
def test_a_trace_agrees_run_after_run_hash_for_hash(trace: Any) -> None:
    assert manifest_hash(trace["manifest"]) == trace["manifestHash"]
    expected = {one["effect"]["effectId"]: one for one in trace["effects"]}
    outcomes: list[RecordedOutcome] = []
    for numbers in trace["waits"]:
        played = run(trace["manifest"], check=trace["checkpoint"], outcomes=outcomes)
        waited = {trace["effects"][number - 1]["effect"]["effectId"] for number in numbers}
        assert played.waits_for == waited
        assert set(played.new) == waited
        for effect in played.effects:
            wanted = expected[effect.effect_id]
            assert jsjson.loads(jsjson.dumps(dict(effect.document))) == wanted["effect"]
            assert effect.request_hash == wanted["requestHash"] == request_hash(wanted["effect"])
        outcomes += [
            RecordedOutcome(name, expected[name]["requestHash"], {"value": expected[name]["value"]})
            for name in waited
        ]
    last = run(trace["manifest"], check=trace["checkpoint"], outcomes=outcomes)
    assert last.output == trace["output"]
    assert last.new == []


@pytest.mark.parametrize("trace", WHOLE)
def test_a_trace_agrees_when_everything_is_answered_at_once(trace: Any) -> None:
    values = {one["effect"]["effectId"]: one["value"] for one in trace["effects"]}
    played = run(trace["manifest"], None, lambda effect: values[effect.effect_id], check=trace["checkpoint"])
    assert played.output == trace["output"]
    assert [effect.effect_id for effect in played.effects] == list(values)


def test_the_first_loop_in_version_two_asks_its_agents_and_one_function() -> None:
    trace = TRACES[-1]
    assert manifest_hash(trace["manifest"]) == trace["manifestHash"]
    ran = trace["decide"]["input"]["agent"]
    values = [
        {"__nylorunAgentTurn": 1, "output": "Fresh tea", "agent": ran},
        {"pass": False, "feedback": "Say when"},
        {"retry": "Say when"},
        "Fresh tea, daily",
        {"pass": True},
        {"output": "Fresh tea, daily"},
    ]
    given = iter(values)
    check = checkpoint(trace["manifest"], "Tea shop", sessionId="s_slogan", turnId="turn_3")
    played = run(trace["manifest"], None, lambda _: next(given), check=check)
    assert [effect.effect_id.removeprefix("turn_3:0:flow:") for effect in played.effects] == [
        f"{what}:{n}" for n in (1, 2) for what in ("poet:agent", "critic:agent", "slogan:decide:fn")
    ]
    decide = played.effects[2]
    assert jsjson.loads(jsjson.dumps(dict(decide.document))) == trace["decide"]
    assert decide.request_hash == trace["requestHash"]


def test_the_prefix_of_ids_is_the_turn_and_its_segment() -> None:
    assert PREFIX == "T1:0:flow:"
