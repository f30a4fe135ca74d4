import os
import stat

import pytest

from cli.model_script import FILE_NAME, write_default_script
from cli.state import TOKEN_NAMES, StateError, hold_state, open_state


def test_tokens_are_made_once_and_closed_to_others(tmp_path):
    state = open_state(tmp_path / "state")
    first = {name: state.token_file(name).read_text() for name in TOKEN_NAMES}
    assert len(set(first.values())) == len(TOKEN_NAMES)
    for name in TOKEN_NAMES:
        assert len(first[name].strip()) == 64
        assert stat.S_IMODE(state.token_file(name).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.token_file("harness").parent.stat().st_mode) == 0o700
    again = open_state(tmp_path / "state")
    assert {name: again.token_file(name).read_text() for name in TOKEN_NAMES} == first


def test_an_empty_token_file_is_filled(tmp_path):
    state = open_state(tmp_path)
    state.token_file("harness").write_text("")
    assert open_state(tmp_path).token_file("harness").read_text().strip()


def test_a_folder_that_can_not_be_made_is_named_with_its_setting(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StateError, match="WHIPPLETREE_STATE_DIR"):
        open_state(blocker / "below")


def test_one_up_at_a_time_has_the_folder_and_a_second_one_is_told_which(tmp_path):
    state = open_state(tmp_path)
    with hold_state(state), pytest.raises(StateError, match=rf"\(process {os.getpid()}\).*{tmp_path}"):
        hold_state(state)
    hold_state(state).close()


def test_a_script_that_is_there_stays_and_one_that_can_not_be_written_is_named(tmp_path):
    path = write_default_script(tmp_path)
    path.write_text("mine")
    assert write_default_script(tmp_path).read_text() == "mine"
    with pytest.raises(StateError, match=FILE_NAME):
        write_default_script(tmp_path / "not there")
