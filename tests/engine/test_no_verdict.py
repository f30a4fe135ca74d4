"""Schemas whose branches make different values of one input: there is no verdict, and no crash."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.contract import EngineRefused
from tests.engine.support import Player, agent, call, calls, checkpoint, start, tool


def filled(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": {"type": "integer", "default": number}}}


TORN = {"type": "object", "properties": {"a": {"allOf": [filled(1), filled(2)]}}}


def test_arguments_without_a_verdict_fail_the_turn() -> None:
    player = start(agent(tool("t") | {"inputSchema": TORN})).model(calls(call("c", "t", a={})))
    assert player.error["code"] == "execution.failed"


def test_an_output_without_a_verdict_fails_the_call() -> None:
    player = (
        start(agent(tool("t", outputSchema=TORN))).model(calls(call("c", "t"))).tool({"a": {}}).model("ok")
    )
    assert player.results()[0]["code"] == "tool.execution-failed"


def test_saved_arguments_without_a_verdict_are_refused() -> None:
    manifest = agent(tool("t") | {"inputSchema": TORN})
    state = start(manifest).model(calls(call("c", "t", a=1))).model("ok").state
    assert state["status"] == "completed"
    paused = start(manifest).model(calls(call("c", "t"))).tool({"kind": "deferred"}).state
    paused["plan"]["calls"][0]["rawArgs"] = {"a": {}}
    given = checkpoint(manifest, {"kind": "continue"}, segment=1, state=paused)
    with pytest.raises(EngineRefused) as refused:
        Player(manifest, given).start()
    assert refused.value.code == "execution.incompatible"
