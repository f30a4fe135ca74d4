import pytest

from gateway.settings import GatewaySettings, SettingsError, Target, is_split, read_settings, without_userinfo

TOKEN = "ab" * 32
BASE = {
    "NYLORUN_HARNESS_URL": "ws://runtime:4200/nylorun/harness/v1",
    "NYLORUN_HARNESS_TOKEN": TOKEN,
    "NYLORUN_GATES_URL": "http://gateway:4100",
}
SPLIT = {
    "NYLORUN_HARNESS_URL": BASE["NYLORUN_HARNESS_URL"],
    "NYLORUN_HARNESS_TOKEN": TOKEN,
    "NYLORUN_MODEL_EXECUTOR_TARGET": "dns:///harness-model:4410",
    "NYLORUN_MCP_POOL_TARGET": "harness-mcp:4420",
    "NYLORUN_SANDBOX_MANAGER_TARGET": "harness-sandbox:4430",
    "NYLORUN_GRPC_TOKEN": "cd" * 32,
}


def problems(environ: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        read_settings(environ)
    assert str(refused.value).splitlines() == [" ".join(refused.value.problems)]
    return list(refused.value.problems)


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_the_original_environment_is_enough_and_means_all_in_one():
    settings = read_settings(BASE)
    assert settings == GatewaySettings(
        harness_url="ws://runtime:4200/nylorun/harness/v1",
        harness_token=TOKEN,
        gates_url="http://gateway:4100",
    )
    assert not settings.split
    assert (settings.root, settings.health_port, settings.stop_grace_ms) == ("/harness", 4300, 10_000)


def test_values_are_trimmed_blank_is_unset_and_urls_keep_their_text():
    settings = read_settings(
        {
            **BASE,
            "NYLORUN_HARNESS_URL": "  WS://Runtime:4200/nylorun/harness/v1 ",
            "NYLORUN_GATES_URL": " http://gateway:4100/base// ",
            "NYLORUN_HARNESS_ROOT": "  ",
            "NYLORUN_HARNESS_HEALTH_PORT": " 4301 ",
        }
    )
    assert settings.harness_url == "WS://Runtime:4200/nylorun/harness/v1"
    assert settings.gates_url == "http://gateway:4100/base"
    assert settings.root == "/harness"
    assert settings.health_port == 4301
    assert settings.view_port is None
    assert read_settings({**BASE, "WHIPPLETREE_GATEWAY_VIEW_PORT": "4302"}).view_port == 4302


def test_what_the_image_sets_is_ignored():
    read_settings({**BASE, "NYLORUN_HOME": "/x", "NYLORUN_LISTEN_PORT": "nonsense", "NYLORUN_PACKING": "1"})


@pytest.mark.spec("operations:13.6", "operations:13.11")
@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"NYLORUN_KEYS_URL": "x", "NYLORUN_RESTATE_B": "1"}, "refuses to start with NYLORUN_KEYS_URL"),
        ({"NYLORUN_HARNESS_URL": ""}, "NYLORUN_HARNESS_URL is required"),
        ({"NYLORUN_HARNESS_URL": "runtime:4200"}, "ws or wss"),
        ({"NYLORUN_HARNESS_URL": "http://runtime:4200"}, "NYLORUN_HARNESS_URL must be a URL with the scheme"),
        ({"NYLORUN_HARNESS_URL": "ws://"}, "NYLORUN_HARNESS_URL is not a valid URL"),
        ({"NYLORUN_GATES_URL": " "}, "NYLORUN_GATES_URL is required"),
        (
            {"NYLORUN_GATES_URL": "ws://gateway"},
            "NYLORUN_GATES_URL must be a URL with the scheme http or https",
        ),
        ({"NYLORUN_HARNESS_ROOT": "harness"}, "NYLORUN_HARNESS_ROOT must be an absolute path"),
        ({"NYLORUN_HARNESS_TOKEN": ""}, "NYLORUN_HARNESS_TOKEN is required"),
        ({"NYLORUN_HARNESS_TOKEN": "ab" * 31}, "at least 32 bytes as hex"),
        ({"NYLORUN_HARNESS_TOKEN": "xy" * 32}, "at least 32 bytes as hex"),
        ({"NYLORUN_HARNESS_HEALTH_PORT": "0"}, "NYLORUN_HARNESS_HEALTH_PORT must be a port"),
        ({"WHIPPLETREE_GATEWAY_VIEW_PORT": "0"}, "WHIPPLETREE_GATEWAY_VIEW_PORT must be a port"),
        ({"WHIPPLETREE_GATEWAY_VIEW_PORT": "4300"}, "must be another port than NYLORUN_HARNESS_HEALTH_PORT"),
        ({"NYLORUN_HARNESS_HEALTH_PORT": "４３００"}, "NYLORUN_HARNESS_HEALTH_PORT must be a port"),
        ({"NYLORUN_SANDBOX_KIND": "pod"}, "pod mode is not built yet"),
        ({"NYLORUN_GRPC_TLS": "mtls"}, "NYLORUN_GRPC_TLS"),
        ({"NYLORUN_STOP_GRACE_MS": "-1"}, "NYLORUN_STOP_GRACE_MS"),
        ({"NYLORUN_LOG_LEVEL": "loud"}, "NYLORUN_LOG_LEVEL"),
    ],
)
def test_one_wrong_setting_is_named(changes, first):
    found = problems({**BASE, **changes})
    assert len(found) == 1
    assert first in found[0]


@pytest.mark.spec("operations:13.3")
def test_all_foreign_variables_are_named_in_one_line_the_database_first():
    found = problems({**BASE, "NYLORUN_RESTATE_ADMIN_URL": "x", "NYLORUN_DATABASE_URL": "y"})
    assert len(found) == 1
    assert "refuses to start with NYLORUN_DATABASE_URL, NYLORUN_RESTATE_ADMIN_URL" in found[0]


@pytest.mark.spec("operations:13.4")
def test_a_blank_foreign_variable_counts_as_unset():
    read_settings({**BASE, "NYLORUN_GATES_TOKEN": "  "})


@pytest.mark.spec("operations:13.5")
@pytest.mark.parametrize(("token", "taken"), [("a" * 63, False), ("AB" * 32, True), ("0" * 80, True)])
def test_a_harness_token_has_64_hex_digits_or_more(token, taken):
    if taken:
        assert read_settings({**BASE, "NYLORUN_HARNESS_TOKEN": token}).harness_token == token
    else:
        assert "at least 32 bytes as hex" in problems({**BASE, "NYLORUN_HARNESS_TOKEN": token})[0]


@pytest.mark.spec("operations:13.11")
@pytest.mark.parametrize("port", ["0", "70000", "43a"])
def test_a_health_port_is_a_number_from_1_to_65535(port):
    found = problems({**BASE, "NYLORUN_HARNESS_HEALTH_PORT": port})
    assert "NYLORUN_HARNESS_HEALTH_PORT" in found[0]


@pytest.mark.spec("operations:13.10")
def test_trailing_slashes_of_the_gates_url_are_dropped():
    assert read_settings({**BASE, "NYLORUN_GATES_URL": "http://gateway:4100//"}).gates_url == (
        "http://gateway:4100"
    )


def test_all_problems_are_told_in_the_order_of_the_checks():
    found = problems(
        {
            "NYLORUN_DATABASE_URL": "postgres://x",
            "NYLORUN_HARNESS_ROOT": "x",
            "NYLORUN_HARNESS_HEALTH_PORT": "x",
        }
    )
    order = ["NYLORUN_DATABASE_URL", "_HARNESS_URL", "_GATES_URL", "_ROOT", "_HARNESS_TOKEN", "_HEALTH_PORT"]
    assert len(found) == len(order)
    assert all(name in line for name, line in zip(order, found, strict=True))


def test_a_pod_is_asked_for_no_harness_token():
    found = problems({**without(BASE, "NYLORUN_HARNESS_TOKEN"), "NYLORUN_SANDBOX_KIND": "pod"})
    assert len(found) == 1


@pytest.mark.spec("operations:13.9")
def test_another_sandbox_kind_is_ignored_and_the_harness_token_required():
    read_settings({**BASE, "NYLORUN_SANDBOX_KIND": "Pod"})
    found = problems({**without(BASE, "NYLORUN_HARNESS_TOKEN"), "NYLORUN_SANDBOX_KIND": "Pod"})
    assert found == ["NYLORUN_HARNESS_TOKEN is required."]


def test_all_three_targets_mean_the_split_gateway_and_gates_may_be_absent():
    settings = read_settings(SPLIT)
    assert settings.split
    assert settings.gates_url is None
    assert settings.targets == {
        "model-executor": (Target("model-executor", "dns:///harness-model:4410"),),
        "mcp-pool": (Target("mcp-pool", "harness-mcp:4420"),),
        "sandbox-manager": (Target("sandbox-manager", "harness-sandbox:4430"),),
    }
    assert settings.bearers == dict.fromkeys(settings.targets, "cd" * 32)
    assert is_split(SPLIT)
    assert not is_split({**BASE, "NYLORUN_MCP_POOL_TARGET": " "})


def test_the_split_gateway_checks_the_gates_when_they_are_set():
    assert "NYLORUN_GATES_URL" in problems({**SPLIT, "NYLORUN_GATES_URL": "gateway"})[0]


@pytest.mark.spec("operations:13.27")
@pytest.mark.parametrize("kept", [("MCP_POOL",), ("MCP_POOL", "SANDBOX_MANAGER")])
def test_one_or_two_targets_are_an_error_that_names_the_others(kept):
    names = ("MODEL_EXECUTOR", "MCP_POOL", "SANDBOX_MANAGER")
    gone = [f"NYLORUN_{name}_TARGET" for name in names if name not in kept]
    found = problems(without(SPLIT, *gone))
    assert len(found) == 1
    assert all(name in found[0] for name in gone)


def test_a_service_has_its_own_bearer_before_the_common_one(tmp_path):
    file = tmp_path / "token"
    file.write_text("ef" * 32 + "\n")
    settings = read_settings({**SPLIT, "NYLORUN_MCP_POOL_GRPC_TOKEN_FILE": str(file)})
    assert settings.bearers["mcp-pool"] == "ef" * 32
    assert settings.bearers["model-executor"] == "cd" * 32


def test_tcp_without_a_bearer_is_refused_and_a_unix_socket_needs_none():
    found = problems(without(SPLIT, "NYLORUN_GRPC_TOKEN"))
    assert len(found) == 3
    assert "NYLORUN_MCP_POOL_GRPC_TOKEN or NYLORUN_GRPC_TOKEN is required" in found[1]
    sockets = {
        "NYLORUN_MODEL_EXECUTOR_TARGET": "unix:/run/w/model.sock",
        "NYLORUN_MCP_POOL_TARGET": "unix:///run/w/mcp.sock",
        "NYLORUN_SANDBOX_MANAGER_TARGET": "a=unix:/run/w/a.sock,b=unix:/run/w/b.sock",
    }
    assert read_settings({**without(SPLIT, "NYLORUN_GRPC_TOKEN"), **sockets}).bearers == {}


def test_shards_have_names_and_keep_their_order():
    settings = read_settings(
        {**SPLIT, "NYLORUN_SANDBOX_MANAGER_TARGET": "s-1 = sbx-1.sbx:4430 , s-0=dns:///sbx-0.sbx:4430"}
    )
    assert settings.targets["sandbox-manager"] == (
        Target("s-1", "sbx-1.sbx:4430"),
        Target("s-0", "dns:///sbx-0.sbx:4430"),
    )


@pytest.mark.parametrize("target", ["ipv4:10.0.0.1:4410,10.0.0.2:4410", "ipv6:[::1]:4410", "[::1]:4410"])
def test_lists_of_addresses_are_one_target(target):
    settings = read_settings({**SPLIT, "NYLORUN_MODEL_EXECUTOR_TARGET": target})
    assert settings.targets["model-executor"] == (Target("model-executor", target),)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("MODEL_EXECUTOR", "harness-model"),
        ("MODEL_EXECUTOR", "harness-model:0"),
        ("MODEL_EXECUTOR", "harness-model:70000"),
        ("MODEL_EXECUTOR", "http://harness-model:4410"),
        ("MODEL_EXECUTOR", "a:1,b:2"),
        ("MCP_POOL", "unix:relative.sock"),
        ("MCP_POOL", "ipv4:1.2.3.4:1,5.6.7.8"),
        ("SANDBOX_MANAGER", "ipv4:1.2.3.4:1,5.6.7.8:1"),
        ("SANDBOX_MANAGER", "a=x:1,a=y:1"),
        ("SANDBOX_MANAGER", "a=x:1,y:1"),
        ("SANDBOX_MANAGER", "=x:1"),
        ("SANDBOX_MANAGER", "a="),
    ],
)
def test_a_target_that_gRPC_cannot_use_is_refused_with_its_setting(setting, value):
    found = problems({**SPLIT, f"NYLORUN_{setting}_TARGET": value})
    assert len(found) == 1
    assert found[0].startswith(f"NYLORUN_{setting}_TARGET")


def test_no_token_is_in_the_settings_text_or_in_an_error():
    assert TOKEN not in repr(read_settings(SPLIT))
    assert "cd" * 32 not in repr(read_settings(SPLIT))
    assert all("secret" not in line for line in problems({**BASE, "NYLORUN_HARNESS_TOKEN": "secret"}))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://u:p@runtime:4200/x?y#z", "ws://runtime:4200/x?y#z"),
        ("ws://runtime:4200", "ws://runtime:4200"),
        ("wss://a@b@runtime/@", "wss://runtime/@"),
        ("ws://u@[::1]:80", "ws://[::1]:80"),
    ],
)
def test_user_and_password_are_taken_off_a_url(url, shown):
    assert without_userinfo(url) == shown
