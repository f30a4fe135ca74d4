"""`--model`: which variables it takes, what it writes, and who gets the key."""

import json
import socket

import pytest

from cli.model_choice import ModelChoiceError, choose_model
from cli.ports import Ports
from cli.stack import MODEL, StackPlan, process_specs
from cli.state import open_state
from services.model_executor.direct.config_file import load_config
from tests.leaks.watch import secret

CORE = "http://127.0.0.1:4000"
KEY = secret("sk-very-secret-key-0123456789")


@pytest.fixture(autouse=True)
def _server(request, monkeypatch):
    """Servers answer, unless a test is about those that don't."""
    if "dead" not in request.node.name:
        monkeypatch.setattr("cli.model_choice.socket.create_connection", lambda *_, **__: socket.socket())


@pytest.mark.parametrize(
    ("model", "environ", "api", "key", "url"),
    [
        ("openai/m", {"OPENAI_API_KEY": KEY}, "openai-completions", KEY, "https://api.openai.com/v1"),
        ("anthropic/a/b", {"ANTHROPIC_API_KEY": KEY}, "anthropic-messages", KEY, "https://api.anthropic.com"),
        ("local/q", {"OPENAI_BASE_URL": "http://h:1/v1"}, "openai-completions", None, "http://h:1/v1"),
        ("openai/q", {"OPENAI_BASE_URL": "http://h:1/v1/"}, "openai-completions", None, "http://h:1/v1"),
    ],
)
def test_a_choice_is_a_configuration_that_the_executor_reads(tmp_path, model, environ, api, key, url):
    state = open_state(tmp_path / "state")
    choice = choose_model(model, environ, state.path, CORE)
    config = load_config(str(choice.config), {})
    selected = config.select(None)
    assert (selected.provider.api, selected.provider.key, selected.provider.base_url) == (api, key, url)
    assert f"{selected.provider.name}/{selected.model}" == model
    assert model in choice.says
    assert KEY not in choice.config.read_text() + choice.says
    for path in (choice.config, state.path / "tokens" / "model-key"):
        assert not path.exists() or path.stat().st_mode & 0o777 == 0o600


def test_a_key_may_stand_in_a_file_and_stays_there(tmp_path):
    state = open_state(tmp_path / "state")
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    choice = choose_model("openai/m", {"OPENAI_API_KEY_FILE": str(file)}, state.path, CORE)
    assert load_config(str(choice.config), {}).select(None).provider.key == KEY
    assert not (state.path / "tokens" / "model-key").exists()
    with pytest.raises(ModelChoiceError, match="not both"):
        choose_model("openai/m", {"OPENAI_API_KEY_FILE": str(file), "OPENAI_API_KEY": KEY}, state.path, CORE)
    for text, says in (("", "is empty"), (None, "can't be read")):
        file.write_text(text) if text is not None else file.unlink()
        with pytest.raises(ModelChoiceError, match=says):
            choose_model("openai/m", {"OPENAI_API_KEY_FILE": str(file)}, state.path, CORE)


def test_a_missing_package_is_named_in_the_versions_that_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("cli.model_choice.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelChoiceError, match=r"pip install 'anthropic\S*2\.14\S*'"):
        choose_model("anthropic/m", {"ANTHROPIC_API_KEY": KEY}, tmp_path, CORE)


def test_no_process_has_the_key_in_its_environment_or_arguments(tmp_path):
    state = open_state(tmp_path / "state")
    environ = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "PATH": "/bin"}
    plan = StackPlan(state, Ports(), environ, model=choose_model("openai/m", environ, state.path, CORE))
    for spec in process_specs(plan):
        assert KEY not in json.dumps([spec.argv, dict(spec.environ)])
        assert ("WHIPPLETREE_MODEL_CONFIG" in spec.environ) is (spec.name == MODEL)


@pytest.mark.parametrize(
    ("model", "environ", "says"),
    [
        ("m", {}, "provider/name"),
        ("/m", {}, "provider/name"),
        ("openai/m", {}, "set OPENAI_API_KEY"),
        ("anthropic/m", {"OPENAI_API_KEY": KEY}, "set ANTHROPIC_API_KEY"),
        ("mistral/m", {"OPENAI_API_KEY": KEY}, "OPENAI_BASE_URL"),
        ("openai/m", {"OPENAI_BASE_URL": "h:1"}, "OPENAI_BASE_URL"),
    ],
)
def test_what_is_missing_is_named(tmp_path, model, environ, says):
    with pytest.raises(ModelChoiceError, match=says):
        choose_model(model, environ, tmp_path, CORE)


def test_files_come_from_the_core_with_its_token_where_it_has_one(tmp_path):
    state = open_state(tmp_path / "state")
    environ = {"OPENAI_API_KEY": KEY}
    (tmp_path / "token").write_text("from-a-file\n")
    for more, key in (
        ({}, None),
        ({"WHIPPLETREE_CORE_TOKEN": "from-a-variable"}, "from-a-variable"),
        ({"WHIPPLETREE_CORE_TOKEN_FILE": str(tmp_path / "token")}, "from-a-file"),
    ):
        config = load_config(str(choose_model("openai/m", environ | more, state.path, CORE).config), {})
        assert config.media is not None
        assert config.media.url == f"{CORE}/v1/sessions/{{sessionId}}/artifacts/{{artifactId}}/{{version}}"
        assert config.media.key == key


@pytest.mark.parametrize("model", ["local/m", "openai/m", "anthropic/m"])
def test_a_dead_address_is_named_with_what_to_do(tmp_path, model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variable = "ANTHROPIC_BASE_URL" if model.startswith("anthropic") else "OPENAI_BASE_URL"
    environ = {variable: f"http://me:hidden@127.0.0.1:{port}/v1"}
    with pytest.raises(ModelChoiceError) as caught:
        choose_model(model, environ, tmp_path, CORE)
    said = str(caught.value)
    assert f"no server answers at http://127.0.0.1:{port}/v1" in said
    assert f"Start it, or correct {variable}" in said
    assert "hidden" not in said
    assert list(tmp_path.iterdir()) == []
