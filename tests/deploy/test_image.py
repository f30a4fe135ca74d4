"""The image and compose.yaml on a real engine: started, driven from outside, restarted, taken down."""

import contextlib
import json
import os
import time

import pytest

from cli.demo_agent import ANSWER
from cli.ports import free_ports
from tests.deploy.engine import EngineError
from tests.deploy.image import ROOT
from tests.deploy.stack import HEALTHY_S, INTERPRETER, Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(420)]

PROCESSES = ("core", "harness", "harness-model", "harness-mcp", "harness-sandbox", "tool-gate")
TOKENS = {
    "core": {"core", "harness"},
    "harness": {"harness", "model-executor", "mcp-pool", "sandbox-manager"},
    "harness-model": {"model-executor"},
    "harness-mcp": {"mcp-pool"},
    "harness-sandbox": {"sandbox-manager"},
    "tool-gate": {"core"},
}
REPORT = """
from pathlib import Path
import grpc
from whippletree.v1 import sandbox_manager_pb2 as messages, sandbox_manager_pb2_grpc as services
request = messages.ReportRequest(tenant=messages.TenantRef(tenant_id="tn_dev"))
bearer = "Bearer " + Path("/tokens/sandbox-manager").read_text().strip()
with grpc.insecure_channel("127.0.0.1:4430") as channel:
    stub = services.SandboxManagerStub(channel)
    print(stub.Report(request, metadata=[("authorization", bearer)], timeout=20).report.text)
"""
REACHES = """
import socket
from concurrent.futures import ThreadPoolExecutor
def reached(target):
    try:
        socket.create_connection(target, 3).close()
    except OSError:
        return False
    return True
targets = {targets!r}
with ThreadPoolExecutor(len(targets)) as pool:
    for target, open in zip(targets, pool.map(reached, targets)):
        if open:
            print(target[1])
"""
PORTS = {
    "core": 4200,
    "harness-model": 4410,
    "harness-mcp": 4420,
    "harness-sandbox": 4430,
    "tool-gate": 4100,
}
REACHED = {
    "core": {"tool-gate"},
    "harness": {"core", "harness-model", "harness-mcp", "harness-sandbox"},
    "harness-mcp": {"tool-gate"},
    "tool-gate": {"core", "harness-mcp"},
}
"""Whose ports a process can open; the others reach none."""


@pytest.fixture(scope="module")
def stack(machine, report):
    """compose.yaml, up and healthy."""
    stack = Stack(
        machine,
        f"whippletree-test-{os.getpid()}",
        [ROOT / "compose.yaml"],
        {"WHIPPLETREE_HTTP_PORT": http_port(machine)},
    )
    with stack.running(report):
        yield stack


def http_port(machine):
    """The usual port in a network of our own; on the machine's engine it may be taken."""
    return "4000" if machine.own else str(free_ports().core_http)


def turn(stack):
    """What came of a turn of the demo's agent, driven through the published port."""
    return stack.from_outside(
        {
            "url": f"http://127.0.0.1:{stack.environ['WHIPPLETREE_HTTP_PORT']}",
            "token": stack.token(),
            "interpreter": INTERPRETER,
        }
    )


def test_the_processes_are_healthy_within_a_minute_after_the_tokens_were_made(stack):
    containers = stack.containers()
    tokens = containers.pop("tokens")
    assert (tokens["State"], tokens["ExitCode"]) == ("exited", 0)
    assert {name: containers[name]["Health"] for name in containers} == dict.fromkeys(PROCESSES, "healthy")
    assert stack.seconds < HEALTHY_S


def test_a_turn_through_the_published_port_reaches_model_mcp_server_and_sandbox(stack):
    answer = turn(stack)
    assert answer["refused"] == 401
    assert (answer["end"], answer["output"]) == ("turn.completed", ANSWER), answer["view"]
    assert {effect["runner"] for effect in answer["effects"]} == {"model", "mcp", "sandbox"}
    assert {effect["status"] for effect in answer["effects"]} == {"completed"}


def test_a_refused_bubblewrap_is_replaced_by_the_emulated_shell_and_the_report_says_so(stack):
    found = json.loads(stack.python("harness-sandbox", REPORT))
    assert (found["backend"], found["isolation"]) == ("virtual", "process")
    assert "bubblewrap" in found["reason"]


def test_the_model_executor_has_the_vendors_packages_and_a_place_for_its_record(stack):
    assert stack.python("harness-model", "import anthropic, openai; print('there')").strip() == "there"
    stack.execute("harness-model", "sh", "-c", "mkdir /harness/model && touch /harness/model/state.sqlite")


@pytest.mark.parametrize("service", PROCESSES)
def test_a_process_is_an_ordinary_user_without_rights_on_a_root_that_nobody_writes(stack, service):
    status = dict(
        line.split(":\t", 1)
        for line in stack.execute(service, "cat", "/proc/1/status").splitlines()
        if ":\t" in line
    )
    assert set(status["Uid"].split()) == {"1000"}
    assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    with pytest.raises(EngineError, match="Read-only file system"):
        stack.execute(service, "touch", "/app/x")
    stack.execute(service, "touch", "/tmp/x")


@pytest.mark.parametrize("service", PROCESSES)
def test_a_process_has_the_tokens_that_it_needs_and_no_others(stack, service):
    listed = stack.execute(service, "find", "/tokens", "-type", "f", "-printf", "%f %m %U\\n").split("\n")
    assert {tuple(row.split()) for row in listed if row} == {
        (name, "400", "1000") for name in TOKENS[service]
    }
    with pytest.raises(EngineError, match="Read-only file system"):
        stack.execute(service, "touch", "/tokens/x")


@pytest.mark.parametrize("service", PROCESSES)
def test_a_process_reaches_those_that_it_shares_a_network_with_and_no_others(stack, service):
    targets = [
        (address, PORTS[name])
        for name, addresses in stack.addresses().items()
        for address in addresses
        if name in PORTS and name != service
    ]
    reached = set(map(int, stack.python(service, REACHES.format(targets=targets)).split()))
    assert reached == {PORTS[name] for name in REACHED.get(service, ())}


def test_a_killed_gateway_comes_back_by_itself_and_runs_the_next_turn(stack):
    with contextlib.suppress(EngineError):
        stack.execute("harness", "sh", "-c", "kill -KILL -1")
    assert turn(stack)["end"] == "turn.completed"


def test_a_restarted_service_serves_the_next_turn(stack):
    stack.compose("restart", "harness-mcp", timeout=90)
    assert turn(stack)["end"] == "turn.completed"


def test_a_stop_is_clean_and_rotated_tokens_leave_the_sessions_as_they_are(stack, report):
    old = stack.token()
    kept = turn(stack)["session"]
    began = time.monotonic()
    stack.compose("stop", timeout=120)
    assert {name: container["ExitCode"] for name, container in stack.containers().items()} == dict.fromkeys(
        (*PROCESSES, "tokens"), 0
    )
    stack.compose("run", "--rm", "tokens", "rotate")
    stack.up()
    report("stop, rotate tokens, up", time.monotonic() - began)
    assert stack.token() != old
    answer = turn(stack)
    assert answer["end"] == "turn.completed"
    assert kept in answer["sessions"]


def test_nothing_is_left_when_it_is_taken_down_with_its_volumes(stack):
    stack.down()
    label = f"label=com.docker.compose.project={stack.project}"
    for kind in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        assert stack.engine.docker(*kind, "--quiet", "--filter", label) == ""
