"""Whether `up` starts a Tool Gate, with which file and which credentials."""

import pytest

from cli.gate_choice import FILE, GateChoice, GateChoiceError, choose_gate

TEXT = '[servers.far]\norigin = "https://far.example"\n[servers.far.headers]\nA = {env = "FAR_TOKEN"}\n'


def test_a_gates_service_of_ones_own_is_used_instead(tmp_path):
    assert choose_gate({"NYLORUN_GATES_URL": " http://stack:4100 "}, tmp_path) is None


def test_without_a_file_it_has_no_credentials(tmp_path):
    assert choose_gate({}, tmp_path) == GateChoice()


def test_the_file_of_the_state_folder_is_found(tmp_path):
    (tmp_path / FILE).write_text(TEXT)
    assert choose_gate({}, tmp_path) == GateChoice(tmp_path / FILE, ("FAR_TOKEN",))


def test_a_named_file_wins_and_its_variables_alone_are_handed_on(tmp_path):
    (tmp_path / FILE).write_text("allow_private = true")
    named = tmp_path / "mine.toml"
    named.write_text(TEXT)
    environ = {"WHIPPLETREE_TOOL_GATE_CONFIG": str(named), "FAR_TOKEN": "x", "OTHER": "y"}
    chosen = choose_gate(environ, tmp_path)
    assert chosen == GateChoice(named, ("FAR_TOKEN",))
    assert chosen.settings(environ) == {"FAR_TOKEN": "x", "WHIPPLETREE_TOOL_GATE_CONFIG": str(named)}


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_can_not_be_used_is_named(tmp_path, named):
    path = tmp_path / ("mine.toml" if named else FILE)
    path.write_text("[")
    environ = {"WHIPPLETREE_TOOL_GATE_CONFIG": str(path)} if named else {}
    with pytest.raises(GateChoiceError, match="is not TOML") as raised:
        choose_gate(environ, tmp_path)
    assert str(raised.value).startswith("WHIPPLETREE_TOOL_GATE_CONFIG" if named else str(path))
