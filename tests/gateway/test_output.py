import pytest

from gateway.engine.contract import SegmentResult
from gateway.runs.output import thrown_output, turn_output
from protocol import jsjson
from protocol.transcript import Entry

STATE = {"version": 1, "status": "completed", "transcript": ["never sent"]}
START = [Entry.from_value({"kind": "input"})]
END = [*START, Entry.from_value({"kind": "final"})]
EDITS = [{"keep": 1, "entries": [{"kind": "final"}], "length": 2}]


def sent(result, start=START):
    method, params = turn_output("run", result, start)
    return method, jsjson.loads(jsjson.dumps(params))


@pytest.mark.parametrize(
    ("status", "method"),
    [
        ("completed", "turn.completed"),
        ("paused", "turn.paused"),
        ("yielded", "checkpoint"),
        ("failed", "turn.failed"),
        ("cancelled", "turn.failed"),
    ],
)
def test_a_state_goes_out_with_an_empty_transcript_and_its_edits(status, method):
    result = SegmentResult(status=status, state=STATE, transcript=END)
    assert sent(result) == (
        method,
        {"runId": "run", "status": status, "state": {**STATE, "transcript": []}, "transcript": EDITS},
    )


@pytest.mark.parametrize("status", ["waiting", "uncertain"])
def test_a_suspension_names_its_effects_and_nothing_else(status):
    result = SegmentResult(status=status, effect_ids=("a", "b"), pending=None, output=None)
    assert sent(result) == ("turn.waiting", {"runId": "run", "status": status, "effectIds": ["a", "b"]})


@pytest.mark.spec("harness-api:10.25")
def test_null_is_sent_and_absent_is_not():
    state = SegmentResult(status="completed", output=None)
    assert sent(state)[1] == {"runId": "run", "status": "completed", "output": None}
    assert "output" not in sent(SegmentResult(status="completed"))[1]
    assert sent(SegmentResult(status="failed", error=None))[1]["error"] is None
    assert sent(SegmentResult(status="paused", pending=None))[1]["pending"] is None


@pytest.mark.spec("harness-api:10.25")
def test_effects_to_cancel_are_named_only_when_there_are_some():
    assert "cancelEffectIds" not in sent(SegmentResult(status="failed", cancel_effect_ids=[]))[1]
    assert sent(SegmentResult(status="failed", cancel_effect_ids=["e"]))[1]["cancelEffectIds"] == ["e"]


def test_an_unchanged_transcript_is_still_there_as_no_edits():
    params = sent(SegmentResult(status="completed", state=STATE, transcript=list(START)))[1]
    assert params["transcript"] == []


def test_without_a_state_there_are_neither_state_nor_edits():
    assert sent(SegmentResult(status="failed", error={"code": "x"}))[1].keys() == {"runId", "status", "error"}


def test_a_thrown_run_has_no_status_and_a_code_only_when_there_is_one():
    assert thrown_output("run", None, "m") == ("turn.failed", {"runId": "run", "thrown": {"message": "m"}})
    assert thrown_output("run", "c", "m")[1]["thrown"] == {"code": "c", "message": "m"}
