"""What `doctor` says of a machine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cli.doctor import machine, stack
from cli.doctor.finding import Finding
from cli.doctor.run import lines
from cli.main import run
from cli.ports import SETTINGS, free_ports
from cli.state import TOKEN_NAMES
from tests.leaks.watch import secret


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def environment(**ports: int) -> dict[str, str]:
    chosen = {name: getattr(free_ports(), name) for name in SETTINGS} | ports
    return {
        setting: str(chosen[name]) if name == "health" else f"127.0.0.1:{chosen[name]}"
        for name, setting in SETTINGS.items()
    }


def test_free_ports_are_fine_and_a_taken_one_is_named_with_its_setting(listener: int) -> None:
    (fine,) = stack.ports(environment())
    assert fine.level == "ok"
    (taken,) = stack.ports(environment(mcp_pool=listener))
    assert taken.level == "problem"
    assert str(listener) in taken.found
    assert "WHIPPLETREE_MCP_POOL_LISTEN" in taken.found


def test_a_setting_of_a_port_that_is_none_is_named() -> None:
    (found,) = stack.ports({"WHIPPLETREE_CORE_HTTP_LISTEN": "0.0.0.0:1"})
    assert found.level == "problem"
    assert "WHIPPLETREE_CORE_HTTP_LISTEN" in found.found


def test_tokens_that_others_may_read_are_a_problem(tmp_path: Path) -> None:
    assert stack.tokens(tmp_path).level == "ok"
    (tmp_path / "tokens").mkdir()
    file = tmp_path / "tokens" / TOKEN_NAMES[0]
    file.write_text("x")
    file.chmod(0o600)
    assert stack.tokens(tmp_path).level == "ok"
    file.chmod(0o644)
    found = stack.tokens(tmp_path)
    assert found.level == "problem"
    assert found.fix == f"chmod 600 {file}"


def test_secret_files_must_be_there_and_hold_something(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.write_text("a-token")
    empty.write_text("\n")
    names = ("NYLORUN_HARNESS_TOKEN_FILE", "NYLORUN_GRPC_TOKEN_FILE", "OPENAI_API_KEY_FILE")
    given = dict(zip(names, map(str, (full, empty, tmp_path / "none")), strict=True))
    levels = {one.what: one.level for one in stack.secret_files(given)}
    assert levels == dict(zip(names, ("ok", "problem", "problem"), strict=True))
    assert "a-token" not in str(list(stack.secret_files(given)))


def test_targets_are_connected_to(listener: int) -> None:
    assert list(stack.targets({})) == []
    given = {
        "NYLORUN_MODEL_EXECUTOR_TARGET": f"127.0.0.1:{listener}",
        "NYLORUN_MCP_POOL_TARGET": "dns:///127.0.0.1:1",
        "NYLORUN_SANDBOX_MANAGER_TARGET": f"127.0.0.1:{listener}",
        "NYLORUN_GRPC_TOKEN": secret("ef" * 32),
    }
    levels = {one.what: one.level for one in stack.targets(given)}
    assert levels == {
        "target of model-executor": "ok",
        "target of mcp-pool": "problem",
        "target of sandbox-manager": "ok",
    }
    (wrong,) = stack.targets({"NYLORUN_MODEL_EXECUTOR_TARGET": "x:1"})
    assert "NYLORUN_MCP_POOL_TARGET" in wrong.found


@pytest.mark.parametrize(("date", "level"), [("Tue, 01 Dec 2026 00:00:00 GMT", "problem"), (None, "ok")])
async def test_the_core_is_reached_and_its_clock_compared(date: str | None, level: str) -> None:
    import asyncio

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=404, headers={"Date": date} if date else {})

    app = web.Application()
    app.add_routes([web.get("/", answer)])
    async with TestServer(app) as server:
        url = f"ws://127.0.0.1:{server.port}/harness"
        reached, clock = await asyncio.to_thread(lambda: list(stack.core({"NYLORUN_HARNESS_URL": url})))
    assert reached.level == "ok"
    assert clock.level == level


def test_a_clock_that_was_never_set_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.clock().level == "ok"
    monkeypatch.setattr("time.time", lambda: 86400.0)
    assert machine.clock().level == "problem"


@pytest.mark.parametrize(
    ("given", "level"),
    [({}, "note"), ({"OPENAI_API_KEY": "k"}, "ok"), ({"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"}, "ok")],
)
def test_a_model_is_found_by_its_key_or_address(given: dict[str, str], level: str) -> None:
    assert stack.model(given).level == level


def test_a_missing_program_is_a_note_that_says_what_to_do(tmp_path: Path) -> None:
    found = machine.program("ripgrep", "rg", {"PATH": str(tmp_path)}, "slower", "apt install ripgrep")
    assert found == Finding("ripgrep", "note", "not found: slower.", "apt install ripgrep")
    assert machine.engine({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}).level == "note"


def test_a_full_disk_and_a_sealed_folder_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.disk(tmp_path / "not" / "yet").level == "ok"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert machine.disk(tmp_path).level == "problem"


def test_lines_show_what_to_do_and_count_problems() -> None:
    found = [Finding("a", "ok", "fine", "unused"), Finding("bb", "problem", "bad\x1b[2J", "Mend it.")]
    assert lines(found, colour=False) == [
        "ok       a   fine",
        "PROBLEM  bb  bad\ufffd[2J",
        "             -> Mend it.",
        "",
        "1 of 2 checks found a problem.",
    ]
    assert "\x1b[31m" in lines(found, colour=True)[1]


def test_the_command_prints_findings_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (environment() | {"WHIPPLETREE_STATE_DIR": str(tmp_path / "state")}).items():
        monkeypatch.setenv(name, value)
    assert run(["doctor"]) == 0
    assert "No problem found." in capsys.readouterr().out
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"what", "level", "found", "fix"} == set(found[0])
    assert not (tmp_path / "state").exists()
