"""The direct route's file: what it may say, what is refused, which model a call gets (model-executor 13.1)."""

import pytest

from services.model_executor.direct.config import ModelInfo, Price
from services.model_executor.direct.config_file import ConfigInvalid, load_config, read_config
from services.model_executor.settings import SettingsError, read_settings
from tests.common.support import TOKEN
from tests.leaks.watch import secret

SECRET = secret("sk-secret-0123456789")
WHOLE = """
route = "direct"
default = "local/qwen"
state_file = "/tmp/x/state.sqlite"
[providers.local]
api = "openai-completions"
base_url = "http://vllm:8000/v1/"
headers = {"X-Team" = "blue-team"}
compat = {usage_in_stream = false, max_tokens_field = "max_tokens"}
[providers.local.models."qwen"]
context_window = 1000
max_output_tokens = 100
input = ["text"]
reasoning = true
price = {input=1, output=2.5, cache_read=0.1, cache_write=3}
[providers.claude]
api = "anthropic-messages"
api_key_env = "KEY"
[retry]
attempts = 5
"""


def test_a_whole_file_is_read():
    config = read_config(WHOLE, {"KEY": f" {SECRET} "})
    local = config.providers["local"]
    assert (local.base_url, local.needs_key, local.key) == ("http://vllm:8000/v1", False, None)
    assert local.models["qwen"] == ModelInfo(1000, 100, False, True, Price(1, 2.5, 0.1, 3))
    assert config.providers["claude"].key == SECRET
    assert config.providers["claude"].base_url == "https://api.anthropic.com"
    assert config.key_variables() == ["KEY"]
    assert (config.retry.attempts, config.retry.base_delay_ms) == (5, 2000)
    assert SECRET not in repr(config)
    assert local.secrets == ("blue-team",)


@pytest.mark.parametrize(
    ("asked", "provider", "model"),
    [
        (None, "local", "qwen"),
        ("claude/opus", "claude", "opus"),
        ("claude/a/b", "claude", "a/b"),
        ("qwen/32b", "local", "qwen/32b"),
        ("other", "local", "other"),
        ("claude", "local", "claude"),
    ],
)
def test_a_call_s_model_id_picks_provider_and_model(asked, provider, model):
    selected = read_config(WHOLE, {}).select(asked)
    assert (selected.provider.name, selected.model) == (provider, model)
    assert model == "qwen" or selected.info == ModelInfo()


BASE = 'default="p/m"\n[providers.p]\napi="openai-completions"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "not TOML"),
        ("", "default"),
        ('default="p"', "provider/model"),
        ('default="q/m"\n[providers.p]\napi="openai-completions"', "provider q"),
        ('default="p/m"\n[providers.p]\napi="grpc"', "providers.p.api"),
        (BASE + "odd=1", "providers.p.odd is not known"),
        ("odd=1\n" + BASE, "odd is not known"),
        (BASE + 'base_url="ftp://x"', "providers.p.base_url"),
        (BASE + 'api_key_file="/nowhere"', "providers.p.api_key_file: /nowhere can't be read"),
        (BASE + 'api_key_file="/x"\napi_key_env="X"', "leave one out"),
        (BASE + "compat={odd=true}", "providers.p.compat.odd"),
        (BASE + 'compat={native_schema="yes"}', "true or false"),
        (BASE + 'compat={thinking="deep"}', "adaptive, budget"),
        (BASE + "headers={a=1}", "providers.p.headers"),
        (BASE + "[providers.p.models.m]\ncontext_window=0", "context_window"),
        (BASE + '[providers.p.models.m]\ninput=["sound"]', "input"),
        (BASE + "[providers.p.models.m]\nprice={input=-1}", "price.input"),
        (BASE + "[retry]\nattempts=0", "retry.attempts"),
        (BASE + "[caps]\nyear_usd=1", "caps.year_usd is not known"),
        (BASE + "[caps]\nday_tokens=-1", "caps.day_tokens must be a number from 0"),
        (BASE + "[caps]\nday_usd=1", 'providers.p.models."m"]'),
        (BASE + "[caps]\nday_usd=1\n[providers.p.models.m]", 'providers.p.models."m"]'),
        (
            BASE + "[providers.p.models.m]\nprice={}\n[providers.p.models.n]\n[caps]\nturn_usd=1",
            'providers.p.models."n" has no price',
        ),
        (BASE + '[media]\nurl="http://x/{artifactId}/{version}"\nresolver="ftp"', "media.resolver"),
        (BASE + '[media]\nresolver="http"', "media.url"),
        (BASE + '[media]\nresolver="http"\nurl="file:///{artifactId}/{version}"', "media.url"),
        (BASE + '[media]\nresolver="http"\nurl="http://x/{artifactId}"', "{version}"),
        (BASE + '[media]\nresolver="http"\nurl="http://{artifactId}/{version}"', "{artifactId} in its path"),
        (
            BASE + '[media]\nresolver="http"\nurl="http://x/{artifactId}/{version}"\napi_key_env="K"',
            "K, which is not set",
        ),
        (BASE + "[media]\nodd=1", "media.odd is not known"),
        ('route="gate"\n' + BASE, "route"),
        ('state_file="x"\n' + BASE, "state_file"),
        ('shared_state="x"\n' + BASE, "shared_state"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(ConfigInvalid) as caught:
        read_config(text, {})
    assert says in str(caught.value)


ODD = (
    *(
        "0",
        "-1",
        "1",
        "99999999999999999999999",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "true",
        "[]",
        "[[]]",
        "[{}]",
        "{}",
    ),
    *(
        '""',
        '"x"',
        '"\\u0000"',
        '"\\n"',
        '"é"',
        '["x"]',
        "2020-01-01",
        "{a=[]}",
        '{"\\n"="x"}',
        '{"é"="é"}',
        "9" * 5000,
    ),
)
PLACES = (
    *("route", "default", "state_file", "shared_state", "providers", "retry", "caps", "media"),
    *(
        f"providers.p.{name}"
        for name in ("base_url", "api_key_file", "api_key_env", "headers", "compat", "models")
    ),
    *(f"providers.p.headers.{name}" for name in ("a", '"a b"', '""')),
    *(f"providers.p.compat.{name}" for name in ("finish_reason", "max_tokens_field", "thinking")),
    *(
        f"providers.p.models.m.{name}"
        for name in ("context_window", "input", "reasoning", "price", "price.input")
    ),
    *(f"retry.{name}" for name in ("attempts", "base_delay_ms", "request_timeout_ms")),
    *(f"caps.{name}" for name in ("turn_tokens", "day_usd")),
    *(f"media.{name}" for name in ("resolver", "url", "api_key_file", "api_key_env", "timeout_ms")),
    *('providers."".api', 'providers."a/b".api', "providers.q", "providers.q.api"),
)


def test_whatever_stands_anywhere_is_taken_or_named_in_one_exception():
    refused = 0
    for place in PLACES:
        for odd in ODD:
            text = f"{place} = {odd}\nproviders.p.api = 'openai-completions'\n"
            text += "" if place == "default" else "default = 'p/m'\n"
            try:
                read_config(text, {"x": "key\nwith a line"})
            except ConfigInvalid:
                refused += 1
    assert refused > len(PLACES) * len(ODD) / 2
    with pytest.raises(ConfigInvalid, match="not TOML"):
        read_config("a = " + "[" * 5000, {})


def test_keys_and_headers_that_no_request_could_carry_are_refused_without_being_quoted(tmp_path):
    for key in ("two\nlines", "k\u00e9y"):
        (tmp_path / "key").write_text(key)
        for member, environ in ((f'api_key_file="{tmp_path}/key"', {}), ('api_key_env="K"', {"K": key})):
            with pytest.raises(ConfigInvalid, match="one line of printable ASCII") as caught:
                read_config(BASE + member, environ)
            assert key not in str(caught.value)


def test_caps_and_media_are_read():
    text = BASE + (
        "[providers.p.models.m]\nprice={}\n[caps]\nturn_usd=0.5\nday_tokens=1000000\n"
        '[media]\nresolver="http"\nurl="http://core/a/{artifactId}/{version}"\napi_key_env="K"\n'
    )
    config = read_config(text, {"K": SECRET})
    assert [(cap.name, cap.limit) for cap in config.caps] == [
        ("caps.turn_usd", 0.5),
        ("caps.day_tokens", 1e6),
    ]
    assert config.has_usd_cap
    assert config.media is not None
    assert config.media.key == SECRET
    assert config.key_variables() == ["K"]
    assert SECRET not in repr(config)
    assert read_config(BASE + '[media]\nresolver="none"', {}).media is None


def test_a_key_file_is_read_and_a_file_that_is_missing_stops_the_start(tmp_path):
    (tmp_path / "key").write_text(f"{SECRET}\n")
    path = tmp_path / "model.toml"
    path.write_text(BASE + f'api_key_file="{tmp_path}/key"')
    assert load_config(str(path), {}).providers["p"].key == SECRET
    settings = {"NYLORUN_GRPC_TOKEN": TOKEN, "WHIPPLETREE_MODEL_ROUTE": "direct"}
    found = read_settings(settings | {"WHIPPLETREE_MODEL_CONFIG": str(path)})
    assert found.direct is not None
    assert found.state_file == "/harness/model/state.sqlite"
    assert SECRET not in repr(found)
    for config, says in ((None, "is required"), ("/nowhere", "can't be read")):
        with pytest.raises(SettingsError, match=says):
            read_settings(settings | ({} if config is None else {"WHIPPLETREE_MODEL_CONFIG": config}))
