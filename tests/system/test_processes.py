"""Single processes: all-in-one as a drop-in, configuration errors, health checks, stops."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.core_client import CoreClient
from cli.demo_agent import ANSWER, QUESTION, manifest
from cli.model_script import write_default_script
from cli.ports import free_ports
from tests.leaks.watch import secret
from tests.system.support import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

TOKEN = secret("f0e1d2c3b4a59687" * 4)


def environment(**settings):
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **settings}


def run(*words, **settings):
    command = [sys.executable, "-m", "cli.main", *words]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, timeout=60, check=False
    )


@contextlib.contextmanager
def process(log, *words, **settings):
    with open(log, "wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *words],
            env=environment(**settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()
            started.wait(30)


def healthy(*words, **settings):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done = run("healthcheck", *words, **settings)
        if done.returncode == 0:
            return
    raise AssertionError(done.stderr)


@pytest.mark.spec("operations:13.19")
async def test_all_in_one_serves_a_core_with_the_originals_environment(tmp_path):
    ports = free_ports()
    root = tmp_path / "harness"
    harness = {
        "NYLORUN_HARNESS_URL": f"ws://127.0.0.1:{ports.core_harness}/nylorun/harness/v1",
        "NYLORUN_HARNESS_TOKEN": TOKEN,
        "NYLORUN_GATES_URL": "http://127.0.0.1:9/",
        "NYLORUN_HARNESS_ROOT": str(root),
        "NYLORUN_HARNESS_HEALTH_PORT": str(ports.health),
        "WHIPPLETREE_MODEL_ROUTE": "scripted",
        "WHIPPLETREE_MODEL_SCRIPT": str(write_default_script(tmp_path)),
    }
    core_settings = {
        "NYLORUN_HARNESS_TOKEN": TOKEN,
        "WHIPPLETREE_CORE_HTTP_LISTEN": f"127.0.0.1:{ports.core_http}",
        "WHIPPLETREE_CORE_HARNESS_LISTEN": f"127.0.0.1:{ports.core_harness}",
        "WHIPPLETREE_CORE_DB": ":memory:",
    }
    with (
        process(tmp_path / "core.log", "--service", "dev-core", **core_settings),
        process(tmp_path / "harness.log", "--service", "harness", **harness) as all_in_one,
    ):
        healthy(NYLORUN_HARNESS_URL="x", NYLORUN_HARNESS_HEALTH_PORT=str(ports.health))
        async with CoreClient(f"http://127.0.0.1:{ports.core_http}") as core:
            await core.put_agent("demo", manifest(sys.executable))
            session = await core.create_session("demo")
            await core.send_message(session, QUESTION)
            view = await until(lambda: core.session(session), lambda seen: seen["status"] != "running")
            view = await until(
                lambda: core.session(session), lambda seen: seen["status"] in ("completed", "failed")
            )
        assert view["lastTurn"]["result"]["output"] == ANSWER
        for folder in ("sandboxes", "plugin-data", "home", "tmp"):
            assert (root / folder).is_dir()
        all_in_one.send_signal(signal.SIGTERM)
        all_in_one.send_signal(signal.SIGTERM)
        assert all_in_one.wait(30) == 0
    log = Path(tmp_path / "harness.log").read_text()
    assert TOKEN not in log


@pytest.mark.spec("operations:13.42")
def test_all_in_one_with_the_originals_settings_alone_reads_as_configured(tmp_path):
    from cli.all_in_one import plan

    settings = environment(
        NYLORUN_HARNESS_URL="ws://runtime:4200/nylorun/harness/v1",
        NYLORUN_HARNESS_TOKEN=TOKEN,
        NYLORUN_GATES_URL="http://gateway:4100",
        NYLORUN_HARNESS_ROOT="/harness",
    )
    parts = plan(settings, tmp_path)
    assert set(parts.services) == {"model-executor", "mcp-pool", "sandbox-manager"}
    assert parts.gateway.harness_token == TOKEN
    assert len(parts.bearer) == 64


@pytest.mark.spec("operations:13.3", "operations:13.28")
@pytest.mark.parametrize(
    ("words", "settings", "text"),
    [
        (("--service", "harness"), {}, "NYLORUN_HARNESS_URL is required"),
        (
            ("--service", "harness"),
            {"NYLORUN_RESTATE_ADMIN_URL": "x", "NYLORUN_DATABASE_URL": "y"},
            "refuses to start with NYLORUN_DATABASE_URL",
        ),
        (
            ("mcp-pool",),
            {"NYLORUN_GRPC_TOKEN": TOKEN, "NYLORUN_HARNESS_TOKEN": TOKEN},
            "NYLORUN_HARNESS_TOKEN",
        ),
        (("model-executor",), {}, "NYLORUN_GRPC_TOKEN"),
        (("sandbox-manager",), {"NYLORUN_GRPC_TOKEN": "short"}, "32 bytes as hex"),
        (("dev-core",), {}, "NYLORUN_HARNESS_TOKEN"),
        (("gateway",), {}, "NYLORUN_MODEL_EXECUTOR_TARGET"),
    ],
)
def test_bad_configuration_is_said_on_stderr_with_exit_1(words, settings, text):
    done = run(*words, **settings)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[0]
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("service", "settings"),
    [("model-executor", {"WHIPPLETREE_MODEL_ROUTE": "scripted"}), ("mcp-pool", {}), ("sandbox-manager", {})],
)
def test_each_service_serves_is_healthy_and_stops_on_sigterm(tmp_path, service, settings):
    listen = f"127.0.0.1:{free_ports().model_executor}"
    settings = {
        **settings,
        "NYLORUN_GRPC_LISTEN": listen,
        "NYLORUN_GRPC_TOKEN": TOKEN,
        "NYLORUN_HARNESS_ROOT": str(tmp_path / "root"),
    }
    with process(tmp_path / "log", "--service", service, **settings) as started:
        healthy("--service", service, NYLORUN_GRPC_LISTEN=listen)
        healthy(NYLORUN_GRPC_LISTEN=listen)
        started.terminate()
        assert started.wait(30) == 0
    done = run("healthcheck", "--service", service, NYLORUN_GRPC_LISTEN=listen)
    assert done.returncode == 1
    assert "does not answer" in done.stderr


def test_a_health_check_of_nothing_says_so():
    done = run("healthcheck", "--service", "nobody")
    assert done.returncode == 1
    assert "There is no service 'nobody'" in done.stderr


def test_the_tokens_of_a_container_stack_are_made_once(tmp_path):
    assert run("tokens", str(tmp_path)).returncode == 0
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(first) == {"harness", "model-executor", "mcp-pool", "sandbox-manager", "core"}
    assert run("tokens", str(tmp_path)).returncode == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == first
