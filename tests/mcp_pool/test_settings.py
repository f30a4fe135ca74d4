"""The process's settings."""

from __future__ import annotations

import pytest

from services.mcp_pool import main
from services.mcp_pool.settings import SettingsError, read_settings

TOKEN = "ab" * 32
GOOD = {"NYLORUN_GRPC_TOKEN": TOKEN, "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_defaults_are_those_of_the_contract():
    settings = read_settings(GOOD)
    assert settings.server.listen == "0.0.0.0:4420"
    assert settings.root.path == "/harness"
    assert settings.gates_url is None
    limits = settings.limits
    assert (limits.request, limits.server, limits.idle, limits.sweep, limits.opening) == (60, 120, 900, 60, 8)
    assert (limits.grace.after_stdin, limits.grace.after_terminate) == (2, 2)
    assert settings.base_environment == {"PATH": "/bin", "HOME": "/harness/home", "TMPDIR": "/harness/tmp"}


def test_times_are_given_in_milliseconds():
    settings = read_settings(
        {
            **GOOD,
            "WHIPPLETREE_MCP_REQUEST_MS": "1500",
            "WHIPPLETREE_MCP_STOP_MS": "10",
            "NYLORUN_HARNESS_ROOT": "/r",
        }
    )
    assert settings.limits.request == 1.5
    assert settings.limits.grace.after_kill == 0.01
    assert settings.root.plugin_data == "/r/plugin-data"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WHIPPLETREE_MCP_REQUEST_MS", "0"),
        ("WHIPPLETREE_MCP_OPENING", "many"),
        ("WHIPPLETREE_MCP_MAX_CONNECTIONS", "0"),
        ("WHIPPLETREE_MCP_MAX_CONNECTIONS_PER_SESSION", "-1"),
        ("WHIPPLETREE_MCP_CALLS_PER_CONNECTION", "0"),
        ("NYLORUN_HARNESS_ROOT", "relative"),
        ("NYLORUN_GATES_URL", "ftp://gate"),
    ],
)
def test_a_bad_setting_is_named(name, value):
    with pytest.raises(SettingsError, match=name):
        read_settings({**GOOD, name: value})


def test_a_process_with_bad_settings_says_so_in_one_line_and_ends(capsys):
    assert main.main({}) == 1
    assert capsys.readouterr().err.count("\n") == 1
