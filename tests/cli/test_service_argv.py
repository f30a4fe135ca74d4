import pytest

from cli.main import is_service_form, run
from cli.service_argv import ArgvError, parse_service


@pytest.mark.spec("operations:13.2")
@pytest.mark.parametrize("argv", [["--service", "harness"], ["--service=harness"]])
def test_both_forms_name_the_same_service(argv):
    assert parse_service(argv).service == "harness"


@pytest.mark.spec("operations:13.1")
@pytest.mark.parametrize("value", ["harness,core", "harness,mcp-pool", "core,gates", "mcp-pool,dev-core"])
def test_services_that_may_not_share_a_process_are_refused(value):
    with pytest.raises(ArgvError, match="may not share a process"):
        parse_service(["--service", value])


@pytest.mark.spec("operations:13.1")
def test_a_wrong_command_line_is_one_line_on_stderr_and_exit_1(capsys):
    assert run(["--service", "harness,core"]) == 1
    error = capsys.readouterr().err
    assert "may not share a process" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--service"], "needs a value"),
        (["--service", "--service"], "needs a value"),
        (["--service", "harness", "--service", "harness"], "only once"),
        (["--service", "harness", "extra"], "Unknown argument 'extra'"),
        (["--service", "harness,"], "empty name"),
        (["--service", "harness,harness"], "twice"),
        (["--service", "all"], "not possible"),
        (["--service", "sandboxd"], "not in this release"),
        (["--service", "nobody"], "does not exist"),
        (["--service", "core"], "does not run it"),
        (["--service", "core,loop"], "does not run it"),
        (["--role", "api"], "does not run"),
        (["--role", "api", "--service", "harness"], "can't be given together"),
    ],
)
def test_each_mistake_is_named(argv, text):
    with pytest.raises(ArgvError, match=text):
        parse_service(argv)


def test_only_the_first_argument_decides_on_the_form():
    assert is_service_form(["--service=harness"])
    assert is_service_form(["--role", "api"])
    assert not is_service_form(["demo", "--service"])
    assert not is_service_form([])


@pytest.mark.parametrize("argv", [["nope"], ["demo", "--nope"], ["up", "extra"]])
def test_unknown_words_give_one_line_and_exit_1(argv, capsys):
    assert run(argv) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "command",
    [
        "gateway",
        "model-executor",
        "mcp-pool",
        "sandbox-manager",
        "dev-core",
        "up",
        "demo",
        "all-in-one",
        "healthcheck",
    ],
)
def test_every_command_explains_itself(command, capsys):
    assert run([command, "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 4
