"""From a declaration to a command, folder and environment."""

from __future__ import annotations

import pytest

from services.mcp_pool.declarations import DeclaredServer, ServerName
from services.mcp_pool.failures import LaunchFailed
from services.mcp_pool.launch import HarnessRoot, base_environment, plan_launch

DATA_NAME = "plugin-data/cap"


def plan(tmp_path, *, root="/plug", agent=None, capability="cap", base=None, **members):
    declaration = {"name": "srv", "type": "stdio", "command": "run", **members}
    server = DeclaredServer(ServerName(agent, capability, "srv"), declaration, root)
    return plan_launch(server, HarnessRoot(str(tmp_path)), base if base is not None else {})


@pytest.mark.spec("mcp-pool:11.18")
def test_relative_command_without_plugin_root_fails_but_its_data_folder_is_made(tmp_path):
    with pytest.raises(LaunchFailed, match="plugin root"):
        plan(tmp_path, root=None, command="./server.mjs")
    assert (tmp_path / DATA_NAME).is_dir()


@pytest.mark.parametrize(
    "members",
    [
        {"args": ["a${PLUGIN_ROOT}"]},
        {"env": {"X": "${PLUGIN_ROOT}/x"}},
        {"cwd": "${PLUGIN_ROOT}"},
        {"cwd": "sub"},
    ],
)
def test_whatever_needs_the_plugin_root_fails_without_one(tmp_path, members):
    with pytest.raises(LaunchFailed, match="requires a plugin root"):
        plan(tmp_path, root=None, **members)


@pytest.mark.parametrize("name", ["PLUGIN_ROOT", "PLUGIN_DATA"])
def test_a_declaration_may_not_set_the_plugin_variables(tmp_path, name):
    with pytest.raises(LaunchFailed, match=name):
        plan(tmp_path, env={name: "x"})


def test_relative_command_is_resolved_and_may_leave_the_root(tmp_path):
    assert plan(tmp_path, command="./bin/../server").argv == ["/plug/server"]
    assert plan(tmp_path, command="./../other").argv == ["/other"]


def test_command_is_not_expanded(tmp_path):
    assert plan(tmp_path, command="${PLUGIN_ROOT}/x").argv == ["${PLUGIN_ROOT}/x"]


@pytest.mark.spec("mcp-pool:11.20")
def test_inserted_text_is_not_expanded_again_and_other_placeholders_stay(tmp_path):
    folder = tmp_path / "${PLUGIN_ROOT}"
    launch = plan(folder, args=["${PLUGIN_DATA}/${PLUGIN_ROOT}", "${HOME}", "$PLUGIN_ROOT"])
    assert launch.argv[1:] == [f"{folder}/{DATA_NAME}//plug", "${HOME}", "$PLUGIN_ROOT"]


@pytest.mark.spec("mcp-pool:11.21")
def test_working_directory_stays_below_its_base(tmp_path):
    data = str(tmp_path / DATA_NAME)
    assert plan(tmp_path, cwd="sub").cwd == "/plug/sub"
    assert plan(tmp_path, cwd="${PLUGIN_DATA}/sub/../x").cwd == f"{data}/x"
    assert plan(tmp_path, cwd="${PLUGIN_DATA}").cwd == data
    assert plan(tmp_path, cwd="/plug").cwd == "/plug"
    for escaping in ("${PLUGIN_DATA}/../x", "..", "/plugin", "/", f"{data}/x"):
        with pytest.raises(LaunchFailed, match="escapes"):
            plan(tmp_path, cwd=escaping)


def test_a_plugin_data_folder_inside_a_word_counts_from_the_plugin_root(tmp_path):
    with pytest.raises(LaunchFailed, match="escapes the plugin root"):
        plan(tmp_path, cwd="${PLUGIN_DATA}x")


def test_without_cwd_the_plugin_root_or_the_data_folder_is_used(tmp_path):
    assert plan(tmp_path).cwd == "/plug"
    assert plan(tmp_path, root=None).cwd == str(tmp_path / DATA_NAME)


def test_data_folder_of_an_agent_used_as_a_tool_has_its_own_level(tmp_path):
    launch = plan(tmp_path, agent="child")
    assert launch.environment["PLUGIN_DATA"] == str(tmp_path / "plugin-data" / "child" / "cap")


@pytest.mark.parametrize("capability", ["..", "a/../..", "../../home"])
def test_a_capability_id_cannot_lead_out_of_the_data_folder(tmp_path, capability):
    with pytest.raises(LaunchFailed, match="plugin data folder"):
        plan(tmp_path, capability=capability)
    assert not (tmp_path / "home").exists()


def test_environment_later_wins_and_names_the_plugin(tmp_path):
    launch = plan(tmp_path, base={"HOME": "/h", "PATH": "/bin"}, env={"HOME": "${PLUGIN_DATA}", "K": "v"})
    data = str(tmp_path / DATA_NAME)
    assert launch.environment == {
        "HOME": data,
        "PATH": "/bin",
        "K": "v",
        "PLUGIN_ROOT": "/plug",
        "PLUGIN_DATA": data,
    }
    assert "PLUGIN_ROOT" not in plan(tmp_path, root=None).environment


@pytest.mark.parametrize(
    "members",
    [{"command": 1}, {"args": "x"}, {"args": [1]}, {"env": []}, {"env": {"A": 1}}, {"cwd": 1}],
)
def test_a_declaration_of_the_wrong_shape_fails(tmp_path, members):
    with pytest.raises(LaunchFailed, match="not valid"):
        plan(tmp_path, **members)


def test_data_folder_that_cannot_be_made_fails_the_launch(tmp_path):
    (tmp_path / "plugin-data").write_text("a file")
    with pytest.raises(LaunchFailed, match="can't be made"):
        plan(tmp_path)


def test_base_environment_is_an_allow_list_with_gaps_filled_from_below():
    process = {
        "PATH": "/bin",
        "LANG": "C",
        "TZ": "UTC",
        "LC_ALL": "C",
        "HOME": "/root",
        "TMPDIR": "/var/tmp",
        "USER": "me",
        "LOGNAME": "me",
        "TERM": "() { :; }",
        "NODE_OPTIONS": "--x",
        "HTTPS_PROXY": "http://p",
        "NYLORUN_HARNESS_TOKEN": "secret",
    }
    assert base_environment(process, HarnessRoot("/r")) == {
        "PATH": "/bin",
        "LANG": "C",
        "TZ": "UTC",
        "LC_ALL": "C",
        "USER": "me",
        "LOGNAME": "me",
        "HOME": "/r/home",
        "TMPDIR": "/r/tmp",
    }


def test_root_folders_are_made_and_may_exist_already(tmp_path):
    root = HarnessRoot(str(tmp_path / "harness"))
    root.create()
    root.create()
    assert sorted(path.name for path in (tmp_path / "harness").iterdir()) == ["home", "plugin-data", "tmp"]
