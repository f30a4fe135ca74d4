"""What the processes of `up` and `demo` are started with."""

import subprocess

from cli.demo import demo_environment
from cli.gate_choice import GateChoice
from cli.ports import Ports
from cli.stack import GATE, GATEWAY, MCP, MODEL, ORDER, SANDBOX, StackPlan, process_specs
from cli.state import StateFolder


def environments(folder, gate=None, **environ):
    plan = StackPlan(StateFolder(folder), Ports(), environ, model_script=folder / "own.json", gate=gate)
    return {spec.name: spec.environ for spec in process_specs(plan)}


def test_without_a_route_the_answers_are_those_of_the_state_folder(tmp_path):
    model = environments(tmp_path)[MODEL]
    assert model["WHIPPLETREE_MODEL_ROUTE"] == "scripted"
    assert model["WHIPPLETREE_MODEL_SCRIPT"] == str(tmp_path / "own.json")


def test_a_script_of_ones_own_needs_no_route(tmp_path):
    model = environments(tmp_path, WHIPPLETREE_MODEL_SCRIPT="/mine.json")[MODEL]
    assert (model["WHIPPLETREE_MODEL_ROUTE"], model["WHIPPLETREE_MODEL_SCRIPT"]) == ("scripted", "/mine.json")


def test_a_route_of_ones_own_is_taken_as_it_is(tmp_path):
    model = environments(tmp_path, WHIPPLETREE_MODEL_ROUTE="gate")[MODEL]
    assert model["WHIPPLETREE_MODEL_ROUTE"] == "gate"
    assert "WHIPPLETREE_MODEL_SCRIPT" not in model


def test_settings_reach_the_process_that_reads_them_and_nothing_else_does(tmp_path):
    found = environments(
        tmp_path,
        GateChoice(),
        NYLORUN_LOG_LEVEL="debug",
        WHIPPLETREE_MCP_IDLE_MS="5",
        WHIPPLETREE_SANDBOX_UID="7",
        API_KEY="secret",
    )
    assert [found[name]["NYLORUN_LOG_LEVEL"] for name in ORDER] == ["debug"] * len(ORDER)
    assert {name for name in ORDER if "WHIPPLETREE_MCP_IDLE_MS" in found[name]} == {MCP}
    assert {name for name in ORDER if "WHIPPLETREE_SANDBOX_UID" in found[name]} == {SANDBOX}
    assert not any("API_KEY" in found[name] for name in ORDER)


def test_a_gate_is_started_for_the_pool_alone_and_only_when_it_was_chosen(tmp_path):
    without = environments(tmp_path, NYLORUN_GATES_URL="http://stack:4100")
    assert GATE not in without
    assert [without[name]["NYLORUN_GATES_URL"] for name in (MODEL, MCP)] == ["http://stack:4100"] * 2
    gate = GateChoice(tmp_path / "gate.toml", ("FAR_TOKEN", "NOT_SET"))
    found = environments(tmp_path, gate, FAR_TOKEN="secret")
    assert {name for name in ORDER if "FAR_TOKEN" in found[name]} == {GATE}
    assert found[GATE]["WHIPPLETREE_TOOL_GATE_CONFIG"] == str(tmp_path / "gate.toml")
    assert {name for name in ORDER if "NYLORUN_GATES_URL" in found[name]} == {MCP, GATEWAY}
    assert found[MCP]["NYLORUN_GATES_URL"] == "http://127.0.0.1:4100"


def test_the_demo_has_its_own_answers_and_no_token():
    kept = demo_environment(
        {
            "WHIPPLETREE_MODEL_ROUTE": "gate",
            "WHIPPLETREE_MODEL_SCRIPT": "/mine.json",
            "WHIPPLETREE_CORE_TOKEN": "secret",
            "WHIPPLETREE_SANDBOX_DRIVER": "emulated",
        }
    )
    assert kept == {"WHIPPLETREE_SANDBOX_DRIVER": "emulated"}


def test_a_folder_with_names_like_ours_starts_our_processes(tmp_path):
    for name in ("cli", "services", "gateway", "protocol"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not ours')")
    plan = StackPlan(StateFolder(tmp_path), Ports(), {})
    for spec in process_specs(plan):
        done = subprocess.run(
            [*spec.argv, "--help"], cwd=tmp_path, env=dict(spec.environ), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
