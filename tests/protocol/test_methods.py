"""Params, results and messages as closed structures."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from protocol import methods
from protocol.jsjson import RawJson
from protocol.methods import MethodInvalid, check_message, check_params, check_result
from tests.protocol.json_values import values

HASH = "0123456789abcdef" * 4
EFFECT = {
    "effectId": "e",
    "sessionId": "s",
    "turnId": "t",
    "agentId": "a",
    "manifestHash": "",
    "kind": "tool",
    "context": {},
}
SESSION = {"ownerId": "s", "activeTurnId": None}
RECORD = {
    "key": "k",
    "sessionId": "s",
    "backend": "b",
    "image": "",
    "state": "running",
    "createdAt": "",
    "updatedAt": "",
}
LEASE = {
    "run": {"runId": "r", "sessionId": "s", "turnId": "t", "epoch": 1},
    "input": {
        "type": "turn.start",
        "engine": "agent",
        "manifest": {},
        "checkpoint": {},
        "outcomes": [{"effectId": "e", "requestHash": "", "outcome": {"value": None}}],
        "transcript": {"cursor": -1},
        "options": {"fixtureModel": False, "yieldAfter": {"steps": 50, "ms": 1.5}},
        "routing": {"rootManifest": {}, "pluginRoots": {}, "sandbox": {"ownerId": "s"}},
    },
}
PARAMS: dict[str, Any] = {
    "hello": {"api": 1, "name": "", "version": "", "capabilities": {}},
    "lease": {},
    "lease.renew": {"runId": "r"},
    "lease.release": {"runId": "r", "reason": "shutdown"},
    "effect.intent": {"runId": "r", "effect": EFFECT, "requestHash": HASH},
    "effect.outcome": {"runId": "r", "effectId": "e", "value": None},
    "transcript.read": {"runId": "r"},
    "event": {"sessionId": "s", "turnId": None, "type": "sandbox.state", "payload": 1, "record": RECORD},
    "session.mcp": {"runId": "r", "diagnostics": []},
    "turn.completed": {"runId": "r", "transcript": [{"keep": 0, "entries": [1], "length": 1}]},
    "turn.paused": {"runId": "r"},
    "turn.waiting": {"runId": "r", "effectIds": ["e"]},
    "turn.failed": {"runId": "r", "thrown": {"message": ""}},
    "checkpoint": {"runId": "r", "status": "yielded"},
    "workspace.exec": {"session": SESSION, "spec": None, "tool": "bash", "input": None},
    "workspace.write": {"session": SESSION, "spec": None, "tool": "edit", "input": None},
    "workspace.read": {"session": SESSION, "spec": None, "tool": "grep", "input": None},
    "workspace.report": {},
    "workspace.sweep": {"now": 1.5},
    "workspace.remove": {"keys": ["k"], "all": True},
}
RESULTS: dict[str, Any] = {
    "hello": {"api": 1, "tenantId": "t", "sandbox": {"backend": None}, "renewEveryMs": 1},
    "lease": LEASE,
    "lease.renew": {"ok": True, "token": ""},
    "lease.release": {},
    "effect.intent": {"status": "completed", "outcome": {"value": 1, "statePatch": {}}},
    "effect.outcome": {"status": "uncertain"},
    "transcript.read": {"cursor": -1, "entries": []},
    "event": {},
    "session.mcp": {"snapshot": None, "sessionTools": []},
    "turn.completed": {"cursor": 4},
    "turn.paused": {},
    "turn.waiting": {},
    "turn.failed": {},
    "checkpoint": {},
    "workspace.exec": {"any": "thing"},
    "workspace.write": {},
    "workspace.read": {},
    "workspace.report": {},
    "workspace.sweep": {"workspaces": [RECORD]},
    "workspace.remove": {},
}


def changed(value: Any, path: str, new: Any) -> Any:
    """A deep copy with another value at the dotted path; ... takes the member out."""
    value = copy.deepcopy(value)
    *parents, last = path.split(".")
    target = value
    for part in parents:
        target = target[int(part) if part.isdigit() else part]
    if new is ...:
        del target[last]
    else:
        target[last] = new
    return value


def test_the_tables_name_every_method_of_either_direction() -> None:
    assert set(PARAMS) == methods.HARNESS_METHODS | methods.CORE_METHODS
    assert methods.OUTPUT_METHODS < methods.HARNESS_METHODS
    assert {"cancel", "effect.resolved"} == methods.MESSAGES


@pytest.mark.parametrize("method", PARAMS)
def test_every_method_takes_its_params_and_refuses_an_extra_key(method: str) -> None:
    check_params(method, PARAMS[method])
    with pytest.raises(MethodInvalid) as caught:
        check_params(method, {**PARAMS[method], "extra": 1})
    assert caught.value.code == "invalid"


@pytest.mark.parametrize("method", RESULTS)
def test_every_method_takes_its_result_and_only_free_ones_take_an_extra_key(method: str) -> None:
    check_result(method, RESULTS[method])
    extra = {**RESULTS[method], "extra": 1}
    if method in ("workspace.exec", "workspace.write", "workspace.read", "workspace.report"):
        check_result(method, extra)
    else:
        with pytest.raises(MethodInvalid):
            check_result(method, extra)


@pytest.mark.parametrize("method", PARAMS)
@pytest.mark.parametrize("value", [None, [], "x", 1, True])
def test_nothing_but_an_object_is_ever_taken(method: str, value: Any) -> None:
    with pytest.raises(MethodInvalid):
        check_params(method, value)
    with pytest.raises(MethodInvalid):
        check_result(method, value)


@pytest.mark.spec("harness-api:10.8")
def test_ids_are_counted_in_code_points_up_to_512() -> None:
    assert check_params("lease.renew", {"runId": "😀" * 512}).run_id == "😀" * 512
    for bad in ("😀" * 513, "", None, 7):
        with pytest.raises(MethodInvalid):
            check_params("lease.renew", {"runId": bad})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run.epoch", 1.5),
        ("run.epoch", 2**53),
        ("run.epoch", True),
        ("run.token", None),
        ("input.checkpoint", None),
        ("input.checkpoint", []),
        ("input.engine", "other"),
        ("input.engine", "\ud800"),
        ("input.\ud800", 1),
        ("input.sessionTools", None),
        ("input.outcomes.0.outcome", {}),
        ("input.outcomes.0.outcome.statePatch", []),
        ("input.outcomes.0.effectId", ""),
        ("input.options.holdMs", -1),
        ("input.options.holdMs", 1.5),
        ("input.options.fixtureModel", ...),
        ("input.options.yieldAfter.ms", math.inf),
        ("input.options.yieldAfter.steps", "1"),
        ("input.routing.pluginRoots", {"a": 1}),
        ("input.routing.pluginRoots", ...),
        ("input.routing.extra", 1),
        ("input.routing.sandbox.environment", {"A": "b"}),
        ("input.transcript.cursor", ...),
    ],
)
def test_a_lease_with_one_fault_anywhere_is_refused(path: str, value: Any) -> None:
    with pytest.raises(MethodInvalid):
        check_result("lease", changed(LEASE, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run.epoch", -1),
        ("run.token", ""),
        ("input.type", "approval.answer"),
        ("input.sessionTools", [1, None]),
        ("input.options.flowLimits", None),
        ("input.options.holdMs", 0),
        ("input.options.yieldAfter", {}),
        ("input.routing.mcpSnapshot", None),
        ("input.routing.sandbox.spec", None),
        ("input.manifest.\ud800", "\ud800"),
    ],
)
def test_a_lease_with_any_value_that_is_free_is_taken(path: str, value: Any) -> None:
    check_result("lease", changed(LEASE, path, value))


def test_a_newer_core_s_lease_is_taken_where_the_caller_says_so() -> None:
    newer = changed(LEASE, "input.routing.pluginRoots", ...)
    newer = changed(newer, "input.routing.sandbox.environment", {"PATH": "/bin"})
    routing = check_result("lease", newer, newer_core=True).input.routing
    assert routing.plugin_roots is UNSET
    assert routing.sandbox.environment == {"PATH": "/bin"}
    for path, value in (("input.routing.extra", 1), ("input.routing.sandbox.environment", {"A": 1})):
        with pytest.raises(MethodInvalid):
            check_result("lease", changed(newer, path, value), newer_core=True)


def test_absent_and_null_are_told_apart() -> None:
    output = check_params("turn.completed", {"runId": "r", "output": None})
    assert output.output is None
    assert output.pending is UNSET
    assert output.state is UNSET
    params = check_params("hello", changed(PARAMS["hello"], "capabilities", {"workspace": None}))
    assert params.capabilities.workspace is None
    intent = check_params("effect.intent", changed(PARAMS["effect.intent"], "effect.input", None))
    assert intent.effect.input is None


@pytest.mark.parametrize("digest", ["A" * 64, "a" * 63, "a" * 65, "g" * 64, "a" * 64 + "\n", ""])
def test_a_request_hash_is_64_lower_case_hex_digits(digest: str) -> None:
    with pytest.raises(MethodInvalid) as caught:
        check_params("effect.intent", {**PARAMS["effect.intent"], "requestHash": digest})
    assert caught.value.path == "$.requestHash"


@pytest.mark.parametrize("kind", ["model", "tool", "hook", "delegation", "agent", "fn", "verify"])
def test_every_kind_of_effect_is_taken(kind: str) -> None:
    params = check_params("effect.intent", changed(PARAMS["effect.intent"], "effect.kind", kind))
    assert params.effect.kind == kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"status": "completed", "outcome": {"value": 1}}, methods.EffectCompleted),
        ({"status": "pending"}, methods.EffectPending),
        ({"status": "uncertain"}, methods.EffectUncertain),
        ({"status": "execute"}, methods.EffectExecute),
        ({"status": "execute", "rejoin": True}, methods.EffectExecute),
    ],
)
def test_an_intent_s_answer_is_one_of_four(answer: dict[str, Any], kind: type) -> None:
    assert isinstance(check_result("effect.intent", answer), kind)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": "running"},
        {"status": None},
        {"status": "\ud800"},
        {"status": "pending", "outcome": {"value": 1}},
        {"status": "execute", "rejoin": False},
        {"status": "execute", "rejoin": 1},
        {"status": "completed"},
    ],
)
def test_any_other_answer_to_an_intent_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(MethodInvalid):
        check_result("effect.intent", answer)


def test_an_outcome_has_a_value_or_an_error() -> None:
    assert check_params("effect.outcome", {"runId": "r", "effectId": "e", "value": None}).value is None
    assert check_params("effect.outcome", {"runId": "r", "effectId": "e", "error": ""}).error == ""
    for members in ({}, {"value": 1, "error": ""}, {"error": None}, {"error": {"message": "m"}}):
        with pytest.raises(MethodInvalid):
            check_params("effect.outcome", {"runId": "r", "effectId": "e", **members})


@pytest.mark.parametrize("answer", [{"ok": True}, {"ok": True, "token": "t", "tokenExpiresAt": "x"}])
def test_a_renewal_may_bring_a_token(answer: dict[str, Any]) -> None:
    assert isinstance(check_result("lease.renew", answer), methods.Renewed)
    assert isinstance(check_result("lease.renew", {"ok": False}), methods.NotRenewed)
    for bad in ({}, {"ok": 1}, {"ok": False, "token": "t"}, {"ok": True, "token": None}):
        with pytest.raises(MethodInvalid):
            check_result("lease.renew", bad)


def test_a_workspace_read_is_chosen_by_its_keys() -> None:
    head = {"session": SESSION, "spec": None}
    tool = check_params("workspace.read", {**head, "tool": "bash", "input": 1})
    assert isinstance(tool, methods.WorkspaceCall)
    data = check_params("workspace.read", {**head, "bytes": {"path": "/a", "maxBytes": 1}})
    assert isinstance(data, methods.WorkspaceBytes)
    listing = check_params("workspace.read", {**head, "list": {"dir": "/", "maxEntries": 1}})
    assert isinstance(listing, methods.WorkspaceList)
    for members in (
        {},
        {"list": {"dir": "/", "maxEntries": 1}, "bytes": {"path": "/a", "maxBytes": 1}},
        {"list": {"dir": "", "maxEntries": 1}},
        {"bytes": {"path": "/a", "maxBytes": 0}},
        {"bytes": {"path": "/a", "maxBytes": 1}, "tool": "read", "input": 1},
        {"tool": "rm", "input": 1},
    ):
        with pytest.raises(MethodInvalid):
            check_params("workspace.read", {**head, **members})


@pytest.mark.parametrize("method", ["turn.yielded", "hello2", "", "cancel", "effect.resolved"])
def test_an_unknown_method_is_invalid(method: str) -> None:
    for check in (check_params, check_result):
        with pytest.raises(MethodInvalid, match="unknown method"):
            check(method, {})


@pytest.mark.parametrize(
    ("message", "params", "ok"),
    [
        ("cancel", {"runId": "r", "reason": "cancel"}, True),
        ("cancel", {"runId": "r", "reason": "deadline", "message": ""}, True),
        ("cancel", {"runId": "r", "reason": "connection.lost"}, False),
        ("cancel", {"runId": "r", "reason": "cancel", "message": None}, False),
        ("cancel", {"runId": "r", "reason": "cancel", "x": 1}, False),
        ("effect.resolved", {"runId": "r", "effectId": "e", "outcome": {"value": None}}, True),
        ("effect.resolved", {"runId": "r", "effectId": "e", "outcome": {}}, False),
        ("hello", PARAMS["hello"], False),
        ("other", {}, False),
    ],
)
def test_messages_are_checked_like_params(message: str, params: Any, ok: bool) -> None:
    if ok:
        check_message(message, params)
    else:
        with pytest.raises(MethodInvalid):
            check_message(message, params)


def test_free_parts_are_passed_on_unread() -> None:
    raw = RawJson('{"a":1}')
    output = {"runId": "r", "state": raw, "transcript": [{"keep": 0, "entries": [raw], "length": 1}]}
    checked = check_params("turn.completed", output)
    assert checked.state is raw
    assert checked.transcript[0].entries == [raw]
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    assert len(check_params("session.mcp", {"runId": "r", "diagnostics": deep}).diagnostics) == 1
    while deep:
        deep = deep.pop()


def test_the_error_names_the_place_and_stays_short() -> None:
    with pytest.raises(MethodInvalid) as caught:
        check_result("lease", changed(LEASE, "input.routing.sandbox.ownerId", 5))
    assert caught.value.path == "$.input.routing.sandbox.ownerId"
    with pytest.raises(MethodInvalid) as caught:
        check_params("lease", {"x" * 100_000: 1})
    assert len(str(caught.value)) < 300


everything = [(check_params, PARAMS), (check_result, RESULTS)]


@given(st.data())
def test_any_value_in_any_place_is_taken_or_refused_with_the_one_error(data: st.DataObject) -> None:
    check, table = data.draw(st.sampled_from(everything))
    method = data.draw(st.sampled_from(sorted(table)))
    value = copy.deepcopy(table[method])
    places = [(value, key) for key in [*value, "extra"]] if isinstance(value, dict) else []
    for member in value.values():
        if isinstance(member, dict):
            places += [(member, key) for key in [*member, "\ud800"]]
    target, key = data.draw(st.sampled_from(places))
    target[key] = data.draw(values)
    path = "$"
    try:
        check(method, value)
    except MethodInvalid as error:
        path = error.path
    assert path.startswith("$")
