"""Recorded flow runs: replayed, looked into, changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from protocol import jsjson
from protocol.canonical import manifest_hash
from tests.gateway.recorded import lines_of, record_turn, turn

FIRST = "t1:0:flow:a:agent:-"
SECOND = "t1:0:flow:b:agent:-"
TWIN = "t1:0:flow:t:tool:-"
SERVER = {"name": "db", "type": "stdio", "command": "db", "env": {"KEY": "s3cret"}}


def workflow(root: Any, *agents: str) -> dict[str, Any]:
    capabilities = [{"id": "desk", "type": "agent", "mcpServers": {"db": SERVER}}]
    return {
        "kind": "workflow",
        "workflowSchemaVersion": 2,
        "id": "flow",
        "root": root,
        "agents": {
            name: {"manifestSchemaVersion": 4, "id": name, "capabilities": capabilities} for name in agents
        },
    }


PAIR = workflow({"chain": [{"agent": "a"}, {"agent": "b"}]}, "a", "b")
TWINS = workflow({"parallel": {"one": {"tool": {"name": "t"}}, "two": {"tool": {"name": "t"}}}})


def recorded(folder: Path, manifest: dict[str, Any]) -> Path:
    """A recorded run whose effects core answers with their own ids."""

    def prepare(gw: Any) -> None:
        gw.core.auto["session.mcp"] = {"snapshot": {}, "sessionTools": []}
        gw.core.auto["effect.intent"] = lambda params: {
            "status": "completed",
            "outcome": {"value": params["effect"]["effectId"]},
        }

    checkpoint = {"engineVersion": "flow-2", "manifestHash": manifest_hash(manifest)}
    given = turn(manifest=manifest, engine="flow", checkpoint=checkpoint)
    return record_turn(folder, given, {}, prepare=prepare)


def replayed(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str]:
    code = run(["replay", *map(str, argv)])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_a_flow_replays_the_same_although_its_agents_secrets_are_left_out(tmp_path, capsys):
    path = recorded(tmp_path, PAIR)
    assert "s3cret" not in path.read_text()
    code, text = replayed(capsys, path)
    assert code == 0, text
    assert f'same: 2 effects and the end (completed, output "{SECOND}")' in text


def test_an_effect_that_a_flow_asks_for_twice_replays(tmp_path, capsys):
    path = recorded(tmp_path, TWINS)
    asked = [line["effectId"] for line in lines_of(path) if line["type"] == "effect"]
    assert asked == [TWIN, TWIN]
    code, text = replayed(capsys, path)
    assert code == 0, text
    assert "same: 2 effects and the end" in text


def test_a_flow_can_be_stopped_and_changed(tmp_path, capsys):
    path = recorded(tmp_path, PAIR)
    code, text = replayed(capsys, path, "--until", "2")
    assert code == 0
    assert f"Stopped at effect 2, {SECOND}, before its answer." in text
    other = tmp_path / "other.json"
    other.write_text(jsjson.dumps({"value": "else"}))
    code, text = replayed(capsys, path, "--set", f"1={other}")
    assert code == 2
    assert "at input.input" in text
    assert f"It stops here: nothing answers {SECOND}." in text
    code, text = replayed(capsys, path, "--set", f"{FIRST}={other}", "--set", f"{SECOND}={other}")
    assert code == 0
    assert text.splitlines()[-1] == 'the end: completed, output "else"'


def test_another_outcome_answers_every_ask_of_its_effect(tmp_path, capsys):
    path = recorded(tmp_path, TWINS)
    other = tmp_path / "other.json"
    other.write_text(jsjson.dumps({"value": 7}))
    code, text = replayed(capsys, path, "--set", f"{TWIN}={other}")
    assert code == 0, text
    assert text.splitlines()[-1] == 'the end: completed, output {"one":7,"two":7}'
