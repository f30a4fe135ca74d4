import asyncio
import json

import pytest

from services.model_executor.main import main, make_route, run
from services.model_executor.settings import SettingsError, read_settings
from tests.common.support import BOUND_S, TOKEN, socket_folder

BASE = {"NYLORUN_GRPC_TOKEN": TOKEN}


def script_file(tmp_path, content='{"answers":[{"answer":"a"}]}'):
    path = tmp_path / "script.json"
    path.write_text(content)
    return str(path)


def test_the_defaults_are_the_gate_on_port_4410():
    settings = read_settings(BASE | {"NYLORUN_GATES_URL": "http://g:4100/prefix/"})
    assert (settings.server.listen, settings.route) == ("0.0.0.0:4410", "gate")
    assert make_route(settings, "i").name == "gate"
    assert settings.gate is not None
    assert (settings.gate.silence_ms, settings.gate.rejoins, settings.gate.renews) == (630_000, 0, False)


def test_the_gate_route_needs_the_gates_service():
    with pytest.raises(SettingsError, match="NYLORUN_GATES_URL is required"):
        read_settings(BASE)


def test_a_script_is_read_at_start(tmp_path):
    settings = read_settings(
        BASE | {"WHIPPLETREE_MODEL_ROUTE": "scripted", "WHIPPLETREE_MODEL_SCRIPT": script_file(tmp_path)}
    )
    assert make_route(settings, "i").name == "scripted"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"WHIPPLETREE_MODEL_ROUTE": "magic"}, "WHIPPLETREE_MODEL_ROUTE"),
        ({"NYLORUN_GATES_URL": "ftp://x"}, "NYLORUN_GATES_URL"),
        ({"NYLORUN_GRPC_TOKEN": "short"}, "NYLORUN_GRPC_TOKEN"),
        ({"NYLORUN_GRPC_TOKEN": " "}, "NYLORUN_GRPC_TOKEN"),
        (
            {"WHIPPLETREE_MODEL_ROUTE": "scripted", "WHIPPLETREE_MODEL_SCRIPT": "/nowhere"},
            "WHIPPLETREE_MODEL_SCRIPT: /nowhere can't be read",
        ),
    ],
)
def test_what_is_wrong_is_named(changes, says):
    with pytest.raises(SettingsError) as caught:
        read_settings(BASE | changes)
    assert says in str(caught.value)


def test_a_script_that_makes_no_sense_is_one_line_on_stderr_and_exit_1(tmp_path, capsys):
    path = script_file(tmp_path, '{"answers":[{"answer":"a","step":"x"}]}')
    environ = BASE | {"WHIPPLETREE_MODEL_ROUTE": "scripted", "WHIPPLETREE_MODEL_SCRIPT": path}
    assert main(environ) == 1
    assert capsys.readouterr().err == (
        "WHIPPLETREE_MODEL_SCRIPT: answers[0].step must be a whole number from 0 to 1000000000.\n"
    )


async def test_it_serves_until_it_is_stopped(tmp_path):
    with socket_folder() as folder:
        environ = {
            "NYLORUN_GRPC_LISTEN": f"unix:{folder}/s",
            "WHIPPLETREE_MODEL_ROUTE": "scripted",
            "WHIPPLETREE_MODEL_SCRIPT": script_file(tmp_path, json.dumps({"answers": []})),
        }
        stop = asyncio.Event()
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run(read_settings(environ), stop, ready.set_result))
        async with asyncio.timeout(BOUND_S):
            assert await ready == f"unix:{folder}/s"
            stop.set()
            await task
