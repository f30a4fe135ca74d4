"""deploy/compose.nylorun.yaml: our processes in the place of a Nylorun stack's harness."""

import json
import os
import time

import pytest

from tests.deploy.image import IMAGE, ROOT
from tests.deploy.stack import Stack
from tests.deploy.test_compose import read_config

FILES = ("tests/deploy/nylorun.yaml", "deploy/compose.nylorun.yaml")
OURS = ("harness", "harness-model", "harness-mcp", "harness-sandbox")
ROOT_OF_LOCK = """
import json, os
found = os.stat("/harness/sandboxes/manager.lock")
print(json.dumps([found.st_uid, found.st_gid]))
"""
OWNER = os.getuid() or 1234
"""Who owns the folders: an ordinary user."""


def environ(root):
    """What stands in the stack's .env file."""
    return {
        "COMPOSE_PROJECT_NAME": f"whippletree-override-{os.getpid()}",
        "NYLORUN_HOST_ROOT": str(root),
        "NYLORUN_UID": str(OWNER),
        "NYLORUN_GID": str(OWNER),
        "NYLORUN_HARNESS_TOKEN": "a" * 64,
        "NYLORUN_MODEL_EXECUTOR_GRPC_TOKEN": "b" * 64,
        "NYLORUN_MCP_POOL_GRPC_TOKEN": "c" * 64,
        "NYLORUN_SANDBOX_MANAGER_GRPC_TOKEN": "d" * 64,
        "WHIPPLETREE_SECCOMP": str(ROOT / "deploy/seccomp-bwrap.json"),
    }


@pytest.fixture(scope="module")
def config():
    return read_config(*FILES, WHIPPLETREE_IMAGE=IMAGE, **environ("/srv/nylorun"))


def test_the_harness_becomes_the_gateway_and_waits_for_core_gates_and_services(config):
    harness = config["services"]["harness"]
    assert harness["image"] == IMAGE
    assert harness["environment"]["NYLORUN_HARNESS_URL"] == "ws://runtime:4200/nylorun/harness/v1"
    assert harness["environment"]["NYLORUN_GATES_URL"] == "http://gateway:4100"
    assert set(harness["depends_on"]) == {"runtime", "gateway", *OURS} - {"harness"}
    assert harness["healthcheck"]["test"][:3] == ["CMD", "whippletree", "healthcheck"]


def test_the_core_and_the_gates_stay_as_the_stack_has_them(config):
    alone = read_config(FILES[0], WHIPPLETREE_IMAGE=IMAGE, **environ("/srv/nylorun"))
    for name in ("runtime", "gateway"):
        assert config["services"][name] == alone["services"][name]


def test_each_folder_of_the_original_goes_to_the_one_service_that_needs_it(config):
    mounted = {
        name: {volume["target"] for volume in config["services"][name].get("volumes", [])} for name in OURS
    }
    assert mounted == {
        "harness": set(),
        "harness-model": set(),
        "harness-mcp": {"/harness/plugin-data", "/harness/home", "/harness/tmp", "/srv/nylorun/plugins"},
        "harness-sandbox": {"/harness/sandboxes"},
    }


def test_networks_join_each_service_with_the_gateway_and_sandboxes_not_with_the_stack(config):
    networks = {name: set(config["services"][name]["networks"]) for name in OURS}
    assert networks == {
        "harness": {"harness", "model-rpc", "mcp-rpc", "sandbox-rpc"},
        "harness-model": {"harness", "model-rpc"},
        "harness-mcp": {"harness", "mcp-rpc"},
        "harness-sandbox": {"sandbox-rpc", "sandbox-egress"},
    }
    assert {name for name, one in config["networks"].items() if one.get("internal")} == {
        "model-rpc",
        "mcp-rpc",
        "sandbox-rpc",
    }


def test_the_harness_token_reaches_the_core_and_the_gateway_alone(config):
    token = environ("")["NYLORUN_HARNESS_TOKEN"]
    holders = {
        name for name, one in config["services"].items() if token in one.get("environment", {}).values()
    }
    assert holders == {"runtime", "harness"}


def test_what_bubblewrap_needs_is_given_to_the_sandbox_manager_alone(config):
    given = {name: config["services"][name]["security_opt"] for name in OURS}
    assert given.pop("harness-sandbox") == [
        "no-new-privileges:true",
        f"seccomp={ROOT}/deploy/seccomp-bwrap.json",
        "systempaths=unconfined",
    ]
    assert all(options == ["no-new-privileges:true"] for options in given.values())


@pytest.mark.engine
@pytest.mark.timeout(420)
@pytest.mark.spec("operations:13.42")
def test_the_image_alone_takes_the_place_of_the_harness_and_the_override_that_of_the_image(
    machine, report, tmp_path
):
    for name in ("tenant/sandboxes", "tenant/plugin-data", "tenant/home", "tenant/tmp", "plugins"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        os.chown(folder, OWNER, OWNER)
    told = environ(tmp_path)
    image = tmp_path / "image.yaml"
    image.write_text(f"services: {{harness: {{image: {IMAGE}}}}}")
    project, lock = told["COMPOSE_PROJECT_NAME"], tmp_path / "tenant/sandboxes/manager.lock"
    alone = Stack(machine, project, [ROOT / FILES[0], image], told)
    split = Stack(machine, project, [ROOT / file for file in FILES], told)
    with alone.running(report):
        # Healthy by the original's own line, with nothing but the original's environment and mounts.
        assert set(alone.containers()) == {"runtime", "gateway", "harness"}
        assert alone.containers()["harness"]["Health"] == "healthy"
        assert lock.stat().st_uid == OWNER
        began = time.monotonic()
        split.up()
        report("up with the override", time.monotonic() - began)
        containers = split.containers()
        assert {containers[name]["Health"] for name in OURS} == {"healthy"}
        assert json.loads(split.python("harness-sandbox", ROOT_OF_LOCK)) == [OWNER, OWNER]
        split.down()
