"""The image and compose.yaml on a real engine: started, driven from outside, restarted, taken down."""

import contextlib
import json
import os
import time

import pytest

from cli.demo_agent import ANSWER
from cli.ports import free_ports
from tests.deploy.engine import EngineError
from tests.deploy.image import ROOT, SLIM, build_slim
from tests.deploy.inside import REPORT, command, reaches
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
SCALED = ("harness", "harness-model", "harness-mcp")
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


def test_commands_run_in_bubblewrap_and_the_report_says_so(stack):
    found = json.loads(stack.python("harness-sandbox", REPORT))
    assert (found["backend"], found["isolation"]) == ("virtual", "process")
    assert found["reason"].startswith("bubblewrap;")
    (probe,) = [one for one in found["probes"] if one.get("version", "").startswith("bwrap ")]
    assert probe["available"] is True


def test_a_command_has_no_capability_and_sees_no_process_but_its_own(stack):
    line = "cat /proc/self/status; ls -d /proc/[0-9]* | wc -l; ls /sys"
    outcome = json.loads(stack.python("harness-sandbox", command({}, line, "ses_rights")))
    assert outcome["kind"] == "completed", outcome
    said = outcome["output"]["stdout"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t{0:016x}\n" in said
    assert "NoNewPrivs:\t1\n" in said
    assert int(said.split()[-1]) < 10
    assert "/sys" in outcome["output"]["stderr"]


def test_a_command_that_may_reach_a_host_has_the_proxy_and_it_refuses_others(stack):
    spec = {"network": {"preset": "none", "allow": ["example.org"]}}
    ask = "GET http://10.0.0.1/ HTTP/1.1\\r\\nhost: 10.0.0.1\\r\\n\\r\\n"
    line = f"exec 3<>/dev/tcp/127.0.0.1/3128 && printf '{ask}' >&3 && head -1 <&3"
    outcome = json.loads(stack.python("harness-sandbox", command(spec, line, "ses_way_out")))
    assert outcome["output"]["stdout"] == "HTTP/1.1 403 Forbidden\r\n", outcome


@pytest.mark.parametrize("service", [name for name in PROCESSES if name != "harness-sandbox"])
def test_namespaces_are_for_the_sandbox_manager_alone(stack, service):
    with pytest.raises(EngineError, match="Operation not permitted"):
        stack.execute(service, "unshare", "--user", "true")


def test_the_sandbox_managers_own_filter_still_refuses_what_the_engine_refuses(stack):
    stack.execute("harness-sandbox", "unshare", "--user", "true")
    # By number on x86-64: keyctl, bpf, perf_event_open, init_module, io_uring_setup, reboot, swapon, kexec_load.
    numbers = (250, 321, 298, 175, 425, 169, 167, 246)
    program = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number in {numbers}:
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1
    print(os.strerror(ctypes.get_errno()))
"""
    said = stack.python("harness-sandbox", program).splitlines()
    assert said == ["Operation not permitted"] * len(numbers)


def test_npx_and_scripts_for_node_run_and_so_does_uv(stack):
    script = "#!/usr/bin/env node\nconsole.log(process.argv.slice(2).join(), process.execPath)\n"
    folder = "/harness/tmp/package"
    write = f"mkdir -p {folder}/node_modules/.bin && cd {folder} && cat >node_modules/.bin/hello"
    stack.execute("harness-mcp", "sh", "-c", f"{write} && chmod +x node_modules/.bin/hello", stdin=script)
    run = f"export HOME=/harness/home; cd {folder} && ./node_modules/.bin/hello a b && npx --offline hello c"
    said = stack.execute("harness-mcp", "sh", "-c", run)
    assert said.splitlines() == ["a,b /usr/bin/node", "c /usr/bin/node"]
    assert stack.execute("harness-mcp", "uv", "--version").startswith("uv ")


def test_the_originals_health_line_asks_the_gateway(stack):
    line = (
        "fetch('http://127.0.0.1:4300/health').then(r => r.json())"
        ".then(b => process.exit(b.connected ? 0 : 1), () => process.exit(1))"
    )
    stack.execute("harness", "node", "-e", line)
    with pytest.raises(EngineError, match="does not answer"):
        stack.execute("harness-mcp", "node", "-e", line)


def test_the_originals_entry_path_is_the_command(stack):
    entry = "/app/runtime/dist/host/main.js"
    assert stack.execute("harness", "node", entry, "--version") == stack.execute(
        "harness", "whippletree", "--version"
    )
    with pytest.raises(EngineError, match="may not share a process"):
        stack.execute("harness", "node", entry, "--service", "harness,core")


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
    reached = set(map(int, stack.python(service, reaches(targets)).split()))
    assert reached == {PORTS[name] for name in REACHED.get(service, ())}


def test_a_killed_gateway_comes_back_by_itself_and_runs_the_next_turn(stack):
    with contextlib.suppress(EngineError):
        stack.execute("harness", "sh", "-c", "kill -KILL -1")
    assert turn(stack)["end"] == "turn.completed"


def test_replicas_of_gateway_and_services_share_the_work(stack, report):
    began = time.monotonic()
    scale = [part for name in SCALED for part in ("--scale", f"{name}=2")]
    stack.up(*scale)
    report("up with replicas", time.monotonic() - began)
    healthy = [one["Service"] for one in stack.all_containers() if one["Health"] == "healthy"]
    assert sorted(healthy) == sorted([*PROCESSES, *SCALED])
    assert {turn(stack)["end"] for _ in range(3)} == {"turn.completed"}
    stack.up()
    assert len(stack.all_containers()) == len(PROCESSES) + 1


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


def test_the_slim_image_says_that_it_has_no_node_and_still_stands_for_the_original(machine, report):
    build_slim(machine, report)
    node = ("run", "--rm", "--network", "none", "--entrypoint", "node", SLIM)
    assert machine.docker(*node, "/app/runtime/dist/host/main.js", "--version")
    with pytest.raises(EngineError, match=r"ended with 127:\n\nnode: this image has no Node"):
        machine.docker(*node, "--version")
    with pytest.raises(EngineError, match="uv"):
        machine.docker("run", "--rm", "--network", "none", "--entrypoint", "uv", SLIM, "--version")
