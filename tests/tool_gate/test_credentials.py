"""The gate's own file: which headers go where, and what is refused about it."""

from __future__ import annotations

import re

import pytest

from services.tool_gate.credentials import ConfigInvalid, GateConfig, credential_variables, load_config
from services.tool_gate.failures import Refused
from services.tool_gate.scrub import scrub
from tests.tool_gate.remote_server import serving
from tests.tool_gate.support import gate, manifest

URL = "https://far.example/mcp"


def written(tmp_path, text):
    path = tmp_path / "gate.toml"
    path.write_text(text)
    return str(path)


def test_values_come_from_variables_and_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    path = written(
        tmp_path,
        f"""
        [servers.far]
        origin = "https://far.example"
        [servers.far.headers]
        Authorization = {{env = "FAR_TOKEN", prefix = "Bearer "}}
        X-Key = {{file = "{secret}"}}
        """,
    )
    config = load_config(path, {"FAR_TOKEN": " from a variable \n"})
    access = config.access("far", URL)
    assert access.headers == {"Authorization": "Bearer from a variable", "X-Key": "from a file"}
    assert access.secrets() == ("Bearer from a variable", "from a variable", "from a file")
    assert config.variables() == credential_variables(path) == ("FAR_TOKEN",)
    secret.write_text("a newer one")
    assert config.access("far", URL).headers["X-Key"] == "a newer one"
    for shown in (repr(config), repr(access)):
        assert "from a" not in shown


def test_a_server_that_is_not_named_gets_nothing():
    access = GateConfig().access("far", URL)
    assert (access.headers, access.allow_private, access.secrets()) == ({}, False, ())


@pytest.mark.parametrize(
    "url", ["https://evil.example/mcp", "http://far.example/mcp", "https://far.example:8443/mcp", "nowhere"]
)
def test_credentials_do_not_follow_a_name_to_another_origin(tmp_path, url):
    path = written(
        tmp_path, '[servers.far]\norigin = "https://far.example"\n[servers.far.headers]\nA = {env = "T"}'
    )
    config = load_config(path, {"T": "secret"})
    assert config.access("far", "https://FAR.example:443/other?x=1").headers == {"A": "secret"}
    with pytest.raises(Refused) as refused:
        config.access("far", url)
    assert refused.value.message.startswith("MCP authorization refused: ")
    assert refused.value.credential_ids == ("far",)


def test_a_credential_that_is_gone_refuses_the_server(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    path = written(
        tmp_path,
        f'[servers.far]\norigin = "https://far.example"\n[servers.far.headers]\nA = {{file = "{secret}"}}',
    )
    config = load_config(path, {})
    secret.unlink()
    with pytest.raises(Refused, match="can't be read"):
        config.access("far", URL)


def test_private_servers_are_allowed_one_by_one_or_all_at_once(tmp_path):
    one = load_config(written(tmp_path, "[servers.near]\nallow_private = true"), {})
    assert (one.access("near", URL).allow_private, one.access("far", URL).allow_private) == (True, False)
    all_ = load_config(written(tmp_path, "allow_private = true\n[servers.near]\nallow_private = false"), {})
    assert all_.access("near", URL).allow_private
    assert all_.access("far", URL).allow_private


HEADERS = '[servers.far]\norigin = "https://far.example"\n[servers.far.headers]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "is not TOML"),
        ("more = 1", "more is not known"),
        ("allow_private = 1", "allow_private must be true or false"),
        ("servers = 1", "servers must be a table"),
        ("[servers]\nfar = 1", "servers.far must be a table"),
        ("[servers.far]\nurl = 'x'", "servers.far: url is not known"),
        ("[servers.far.oauth]\nclient = 'x'", "OAuth"),
        ("[servers.far]\norigin = 'far.example'", "servers.far.origin must be"),
        ("[servers.far]\norigin = 'https://far.example/path'", "servers.far.origin must be"),
        ("[servers.far.headers]\nA = {env = 'T'}", "servers.far.origin is required"),
        (HEADERS + "A = 'secret'", "so that no secret stands here"),
        (HEADERS + "A = {env = 'T', file = 'x'}", "servers.far.headers.A must be"),
        (HEADERS + "A = {env = 1}", "must hold texts"),
        (HEADERS + "A = {env = 'a b'}", "must name a variable"),
        (HEADERS + "A = {env = 'T', more = 'x'}", "more is not known"),
        (HEADERS + "A = {env = 'T', prefix = \"a\\nb\"}", "prefix holds"),
        (HEADERS + "A = {env = 'MISSING'}", "the variable MISSING is not set"),
        (HEADERS + "A = {env = 'BAD'}", "the value is empty, or holds"),
        (HEADERS + "A = {file = '/nowhere/at/all'}", "can't be read"),
        (HEADERS + "Host = {env = 'T'}", "is not a header that may be set"),
        (HEADERS + '"a b" = {env = "T"}', "is not a header that may be set"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(tmp_path, text, says):
    with pytest.raises(ConfigInvalid, match=re.escape(says)) as raised:
        load_config(written(tmp_path, text), {"T": "secret", "BAD": "two\nlines"})
    assert "two" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigInvalid, match=r"nothing\.toml can't be read: No such file"):
        load_config(str(tmp_path / "nothing.toml"), {})


def test_secrets_are_taken_out_of_texts_and_counted():
    value = {"password-1": "a password-1 b password-1", "list": ["password-1", 1, None, {"x": "password-12"}]}
    clean, count = scrub(value, ("password-1",))
    assert clean == {
        "password-1": "a [redacted] b [redacted]",
        "list": ["[redacted]", 1, None, {"x": "[redacted]2"}],
    }
    assert count == 4
    assert value["list"][0] == "password-1"


@pytest.mark.parametrize("kind", ["events", "json", "sse"])
async def test_credentials_go_to_their_server_and_come_back_in_no_answer(tmp_path, kind):
    declared = {"X-Declared": "yes", "authorization": "Bearer declared", "Host": "evil", "X-Bad": "a\nb"}
    async with serving(kind, headers=declared) as remote:
        origin = remote.url.rpartition("/")[0]
        path = written(
            tmp_path,
            f'[servers.far]\norigin = "{origin}"\nallow_private = true\n[servers.far.headers]\n'
            'Authorization = {env = "T", prefix = "Bearer "}',
        )
        config = load_config(path, {"T": "very-secret-token"})
        async with gate(tmp_path, manifest(remote.declaration), config=config) as it:
            await it.client.call("echo", {"said": "x"})
            answer = await it.client.call("leak", effect="e2")
    sent = remote.headers[0]
    assert sent["authorization"] == "Bearer very-secret-token"
    assert sent["x-declared"] == "yes"
    assert sent["host"] == origin.removeprefix("http://")
    assert "x-bad" not in sent
    assert answer.body["redacted"] == 1
    assert answer.body["result"]["content"][0]["text"] == "I got [redacted], really."


async def test_a_refusal_is_an_answer_that_names_the_credential(tmp_path):
    path = written(
        tmp_path, '[servers.far]\norigin = "https://far.example"\n[servers.far.headers]\nA = {env = "T"}'
    )
    document = manifest({"name": "far", "type": "sse", "url": "https://evil.example/sse"})
    async with gate(tmp_path, document, config=load_config(path, {"T": "secret"})) as it:
        answer = await it.client.connect()
    assert answer.body["error"]["credentialIds"] == ["far"]
    assert answer.message.startswith("MCP authorization refused: ")
