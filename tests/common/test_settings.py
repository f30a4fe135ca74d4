import pytest

from services.common.secrets import forget_secrets
from services.common.server import read_server_settings
from services.common.settings import Environment, SettingsError, refuse_foreign

HEX = "0f" * 32


def test_values_are_trimmed_and_blank_is_unset():
    env = Environment({"A": "  x ", "B": "   "})
    assert env.text("A") == "x"
    assert env.text("B") is None
    assert env.text("B", "d") == "d"
    env.finish()


def test_all_problems_are_told_in_one_line_the_first_found_first():
    env = Environment({"PORT": "0", "MODE": "loud"})
    env.required("NAME")
    env.port("PORT", 1)
    env.choice("MODE", ("quiet",), "quiet")
    with pytest.raises(SettingsError) as caught:
        env.finish()
    first, second, third = caught.value.problems
    assert str(caught.value) == f"{first} {second} {third}"
    assert first.startswith("NAME")
    assert second.startswith("PORT")
    assert third.startswith("MODE")


@pytest.mark.parametrize("value", ["0", "70000", "43a", "-1", "٣", "1e3", "99999999999999999999"])
def test_ports_outside_the_range_or_not_in_ascii_digits_are_refused(value):
    env = Environment({"P": value})
    env.port("P", 1)
    assert env.problems


@pytest.mark.parametrize(
    ("value", "fine"), [("0f" * 31 + "0", False), (HEX.upper(), True), ("1" * 80, True), ("g" * 64, False)]
)
def test_tokens_are_at_least_32_bytes_of_hex_in_any_case(value, fine):
    env = Environment({"T": value})
    assert (env.hex_token("T") == value) is fine
    assert (not env.problems) is fine
    assert value not in " ".join(env.problems)


def test_a_token_may_come_from_a_file_and_is_trimmed(tmp_path):
    (tmp_path / "t").write_text(f"  {HEX}\n")
    env = Environment({"T_FILE": str(tmp_path / "t")})
    assert env.hex_token("T") == HEX
    env.finish()


@pytest.mark.parametrize("content", [None, "", "x" * 70_000])
def test_a_token_file_that_is_missing_empty_or_huge_is_refused(tmp_path, content):
    path = tmp_path / "t"
    if content is not None:
        path.write_text(content)
    env = Environment({"T_FILE": str(path)})
    assert env.hex_token("T", required=True) is None
    assert len(env.problems) == 1
    assert "T_FILE" in env.problems[0]


def test_a_token_given_twice_is_refused(tmp_path):
    (tmp_path / "t").write_text(HEX)
    env = Environment({"T": HEX, "T_FILE": str(tmp_path / "t")})
    env.secret("T")
    assert "both set" in env.problems[0]


def test_a_comma_list_is_taken_only_where_tokens_are_checked():
    assert Environment({"T": f"{HEX}, {HEX}"}).hex_token("T", several=True) == f"{HEX},{HEX}"
    env = Environment({"T": f"{HEX},{HEX}"})
    assert env.hex_token("T") is None
    assert env.problems


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("ws://h:1/x", None),
        ("  ws://h:1/x  ", None),
        ("http://h", "ws or wss"),
        ("nonsense", "not a valid URL"),
        ("ws://", "not a valid URL"),
        ("ws://h:99999", "not a valid URL"),
        ("ws://[::1", "not a valid URL"),
        ("ws://a b/", "not a valid URL"),
        ("ws://1.2.3.999/", "not a valid URL"),
    ],
)
def test_urls_name_what_is_wrong_with_them(value, problem):
    env = Environment({"U": value})
    found = env.url("U", ("ws", "wss"))
    if problem is None:
        assert found == value.strip()
    else:
        assert found is None
        assert problem in env.problems[0]


def test_the_scheme_that_was_found_is_named():
    env = Environment({"U": "http://h"})
    env.url("U", ("ws", "wss"))
    assert "http" in env.problems[0]


@pytest.mark.spec("operations:13.3")
def test_variables_of_other_processes_are_refused_together_the_database_first():
    env = Environment(
        {
            "NYLORUN_RESTATE_B": "1",
            "NYLORUN_RESTATE_ADMIN_URL": "http://x",
            "NYLORUN_KEYS_URL": "x",
            "NYLORUN_DATABASE_URL": "postgres://u:secret@h/d",
        }
    )
    refuse_foreign(env)
    [problem] = env.problems
    assert "refuses to start with NYLORUN_DATABASE_URL" in problem
    assert "NYLORUN_DATABASE_URL, NYLORUN_KEYS_URL, NYLORUN_RESTATE_ADMIN_URL, NYLORUN_RESTATE_B" in problem
    assert "secret" not in problem


@pytest.mark.spec("operations:13.4")
def test_a_blank_foreign_variable_counts_as_unset():
    env = Environment({"NYLORUN_GATES_TOKEN": "  "})
    refuse_foreign(env)
    env.finish()


@pytest.mark.spec("operations:13.28")
def test_a_service_refuses_the_harness_token():
    env = Environment({"NYLORUN_HARNESS_TOKEN": HEX, "NYLORUN_GRPC_TOKEN": HEX})
    read_server_settings(env, "0.0.0.0:4420")
    assert "NYLORUN_HARNESS_TOKEN" in env.problems[0]


def test_tcp_without_a_token_is_refused_and_a_unix_socket_is_not():
    env = Environment({})
    read_server_settings(env, "0.0.0.0:4420")
    assert "NYLORUN_GRPC_TOKEN" in env.problems[0]
    env = Environment({"NYLORUN_GRPC_LISTEN": "unix:/run/x"})
    assert read_server_settings(env, "0.0.0.0:4420").unix_path == "/run/x"
    env.finish()


@pytest.mark.parametrize("listen", ["4420", ":4420", "h:x", "h:70000", "unix:relative"])
def test_listen_addresses_that_make_no_sense_are_refused(listen):
    env = Environment({"NYLORUN_GRPC_LISTEN": listen, "NYLORUN_GRPC_TOKEN": HEX})
    read_server_settings(env, "0.0.0.0:4420")
    assert "NYLORUN_GRPC_LISTEN" in env.problems[0]


def test_the_token_never_stands_in_the_repr_of_the_settings():
    env = Environment({"NYLORUN_GRPC_TOKEN": HEX})
    assert HEX not in repr(read_server_settings(env, "0.0.0.0:4420"))


def test_secrets_leave_the_environment(monkeypatch):
    import os

    monkeypatch.setenv("WT_SECRET", "x")
    forget_secrets(["WT_SECRET", "WT_UNSET"])
    assert "WT_SECRET" not in os.environ


@pytest.mark.parametrize(
    ("value", "read"), [("1", True), ("ON", True), ("no", False), ("Off", False), (" ", True)]
)
def test_flags_are_words_of_either_kind(value, read):
    env = Environment({"F": value})
    assert env.flag("F", True) is read
    env.finish()


def test_a_flag_that_is_neither_is_a_problem():
    env = Environment({"F": "maybe"})
    assert env.flag("F", False) is False
    assert "F must be on or off" in env.problems[0]


@pytest.mark.parametrize("value", ["harness", "./x", "~"])
def test_a_root_that_is_no_absolute_path_is_named(value):
    env = Environment({"ROOT": value})
    assert env.absolute_path("ROOT", "/harness") == "/harness"
    assert "ROOT" in env.problems[0]


@pytest.mark.parametrize("value", ["-1", "1.5", "1e3", "x", "99", "٣"])
def test_whole_numbers_have_ascii_digits_and_bounds(value):
    env = Environment({"N": value})
    assert env.integer("N", 7, 0, 98) == 7
    assert "from 0 to 98" in env.problems[0]
