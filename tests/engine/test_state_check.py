from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gateway.engine.agent.state_check import check_combination, check_state
from gateway.engine.contract import EngineRefused
from protocol.transcript import Entry
from tests.engine.support import TRACES, agent, call, calls, start, tool

PAUSED: dict[str, Any] = TRACES[2]["result"]["state"]
COMPLETED: dict[str, Any] = TRACES[1]["result"]["state"]


def fault_of(state: Any) -> str | None:
    """Why the state is invalid; its transcript is checked too."""
    entries = [Entry.from_value(entry) for entry in state.get("transcript", [])]
    emptied = {**state, "transcript": []} if "transcript" in state else state
    try:
        check_state(emptied, entries)
    except EngineRefused as refused:
        return f"{refused.code}: {refused.message}"
    return None


def is_invalid(state: Any) -> bool:
    return (fault_of(state) or "").startswith("execution.invalid-state: ")


def at(state: dict[str, Any], *path: str | int) -> Any:
    for step in path:
        state = state[step]  # type: ignore[index]
    return state


def test_the_states_that_segments_end_with_are_valid() -> None:
    assert fault_of(PAUSED) is None
    assert fault_of(COMPLETED) is None


CALL = ("plan", "calls", 0)

MEMBERS: list[tuple[tuple[str | int, ...], Any]] = [
    ((), {"extra": 1}),
    ((), {"version": 2}),
    ((), {"version": True}),
    ((), {"agentId": ""}),
    ((), {"revision": -1}),
    ((), {"revision": 1.5}),
    ((), {"turnCount": "1"}),
    ((), {"status": "waiting"}),
    ((), {"status": ["paused"]}),
    ((), {"state": []}),
    ((), {"outputContract": []}),
    ((), {"cancelledCalls": {}}),
    ((), {"cancelledCalls": [{}]}),
    ((), {"turn": {"turnId": "t"}}),
    ((), {"turn": {"turnId": "other", "attempts": {"afterStep": 0, "afterTurn": 0}}}),
    ((), {"turn": {"turnId": "turn_T1_0_1", "attempts": {"afterStep": 0, "afterTurn": -1}}}),
    (
        (),
        {
            "turn": {
                "turnId": "turn_T1_0_1",
                "attempts": {"afterStep": 0, "afterTurn": 0},
                "patch": {"tools": {"a": 1}},
            }
        },
    ),
    (("plan",), {"stepNumber": 0}),
    (("plan",), {"order": []}),
    (("plan",), {"immediate": {}}),
    (("plan", "order", 0), {"callId": "c9"}),
    (("plan", "order", 0), {"toolName": "other"}),
    (CALL, {"status": "active"}),
    (CALL, {"status": "settled"}),
    (CALL, {"status": "pending"}),
    (CALL, {"toolName": "other"}),
    (CALL, {"invocationId": ""}),
    (CALL, {"result": {"callId": "c1", "toolName": "lookup", "kind": "completed", "output": 1}}),
    (CALL, {"interactionPhase": "after"}),
    (CALL, {"resume": {"kind": "approval", "interactionId": "i"}}),
    (CALL, {"resume": {"kind": "later", "interactionId": "i"}}),
    (CALL, {"wait": {"kind": "nap", "waitId": "w"}}),
    ((*CALL, "interaction"), {"id": ""}),
    ((*CALL, "interaction"), {"kind": "quiz"}),
    ((*CALL, "interaction"), {"icon": "x"}),
    ((*CALL, "reference"), {"toolName": "other"}),
    ((*CALL, "reference", "descriptor"), {"name": "other"}),
    ((*CALL, "reference", "descriptor"), {"inputSchema": []}),
    ((*CALL, "reference", "descriptor"), {"extra": 1}),
    (("transcript", 0), {"kind": "other"}),
    (("transcript", 0), {"turnId": ""}),
    (("transcript", 0), {"extra": 1}),
    (("transcript", 0, "event"), {"kind": "settle"}),
    (("transcript", 0, "event"), {"content": []}),
    (("transcript", 1), {"stepId": 5}),
    (("transcript", 1, "candidate"), {"extra": 1}),
    (("transcript", 1, "candidate"), {"output": "text"}),
    (("transcript", 1, "candidate"), {"finishReason": "error"}),
    (("transcript", 1, "candidate", "output", 0), {"id": ""}),
    (("transcript", 1, "candidate", "output", 0), {"name": None}),
]


@pytest.mark.parametrize(("path", "change"), MEMBERS)
def test_a_paused_state_with_a_changed_member_is_invalid(path: tuple[str | int, ...], change: Any) -> None:
    state = deepcopy(PAUSED)
    at(state, *path).update(change)
    assert is_invalid(state)


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ((), "version"),
        ((), "status"),
        ((), "plan"),
        ((), "transcript"),
        (("plan",), "stepId"),
        (("plan",), "calls"),
        (CALL, "rawArgs"),
        (CALL, "interaction"),
        (CALL, "interactionPhase"),
        (CALL, "reference"),
        (("transcript", 1), "candidate"),
    ],
)
def test_a_paused_state_that_lacks_a_member_is_invalid(path: tuple[str | int, ...], member: str) -> None:
    state = deepcopy(PAUSED)
    del at(state, *path)[member]
    assert is_invalid(state)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ((), {"cancelledCalls": deepcopy(PAUSED["plan"]["calls"])}),
        ((), {"turn": {"turnId": "turn_T1_0_1", "attempts": {"afterStep": 2, "afterTurn": 0}, "input": ""}}),
        (CALL, {"token": None}),
        (CALL, {"args": None}),
        ((*CALL, "interaction"), {"metadata": 5}),
        (("transcript", 0, "event"), {"metadata": {}}),
    ],
)
def test_what_may_be_there_may_be_there(path: tuple[str | int, ...], change: Any) -> None:
    state = deepcopy(PAUSED)
    at(state, *path).update(change)
    assert fault_of(state) is None


def test_calls_that_share_ids_are_invalid() -> None:
    paused = start(agent(tool("a"), tool("b"))).model(calls(call("c1", "a"), call("c2", "b")))
    value = {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": "?"}}
    for effect_id in list(paused.in_flight):
        paused.complete(effect_id, value)
    state = paused.state
    assert fault_of(state) is None
    first, second = state["plan"]["calls"]
    for member in ("callId", "invocationId"):
        changed = deepcopy(state)
        changed["plan"]["calls"][1][member] = first[member]
        assert is_invalid(changed)
    changed = deepcopy(state)
    changed["plan"]["calls"][1]["interaction"]["id"] = first["interaction"]["id"]
    assert is_invalid(changed)
    changed = deepcopy(state)
    changed["plan"]["order"] = [changed["plan"]["order"][0]] * 2
    assert is_invalid(changed)
    assert second["callId"] == "c2"
    changed = deepcopy(state)
    result = {"kind": "denied", "reason": "no", "callId": "c1", "toolName": "a"}
    changed["plan"]["immediate"], changed["plan"]["calls"] = [result], [first]
    assert is_invalid(changed), "one call has two places and the other none"


def entry_fault(entry: Any) -> str | None:
    return fault_of({**COMPLETED, "transcript": [entry]})


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "final", "turnId": "t", "stepId": "s", "output": None},
        {"kind": "input", "turnId": "t", "event": {"kind": "respond", "interactionId": "i", "value": None}},
        {
            "kind": "compaction",
            "turnId": "t",
            "stepId": "s",
            "summary": "",
            "trigger": "overflow",
            "tokensBefore": 0,
            "tokensAfter": 0,
        },
        {
            "kind": "tool-results",
            "turnId": "t",
            "stepId": "s",
            "results": [
                {
                    "callId": "c",
                    "toolName": "t",
                    "kind": "failed",
                    "code": "",
                    "message": "",
                    "details": {
                        "phase": "input",
                        "issues": [{"path": ["a", 0], "code": "c", "message": "m"}],
                    },
                }
            ],
        },
    ],
)
def test_entries_of_every_kind_are_valid_anywhere(entry: Any) -> None:
    assert entry_fault(entry) is None


@pytest.mark.parametrize(
    "entry",
    [
        5,
        None,
        {},
        {"kind": "final", "turnId": "t", "stepId": "s"},
        {"kind": "compaction", "turnId": "t", "stepId": "s", "summary": "", "trigger": "overflow"},
        {"kind": "tool-results", "turnId": "t", "stepId": "s", "results": [{"callId": "c"}]},
        {
            "kind": "tool-results",
            "turnId": "t",
            "stepId": "s",
            "results": [{"callId": "c", "toolName": "t", "kind": "denied"}],
        },
    ],
)
def test_what_is_no_entry_is_invalid(entry: Any) -> None:
    assert (entry_fault(entry) or "").startswith("execution.invalid-state: ")


@pytest.mark.parametrize(
    ("status", "statuses", "input_", "fits"),
    [
        ("active", None, {"kind": "continue"}, True),
        ("active", None, {"kind": "approve"}, True),
        ("active", None, {"kind": "settle"}, True),
        ("active", None, {"kind": "user-message"}, False),
        ("active", None, "hello", False),
        ("active", None, {"text": "hello"}, False),
        ("paused", ["interaction"], "hello", True),
        ("paused", ["interaction", "active"], "hello", False),
        ("completed", ["settled"], "hello", False),
        ("completed", ["active"], {"kind": "continue"}, True),
        ("ready", None, {"kind": "continue"}, True),
    ],
)
def test_which_inputs_fit_which_states(
    status: str, statuses: list[str] | None, input_: Any, fits: bool
) -> None:
    state: dict[str, Any] = {"status": status}
    if statuses is not None:
        state["plan"] = {"calls": [{"status": one} for one in statuses]}
    if fits:
        check_combination(state, input_)
        return
    with pytest.raises(EngineRefused) as refused:
        check_combination(state, input_)
    assert refused.value.code == "execution.invalid-state"
