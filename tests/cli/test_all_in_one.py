"""All processes in one: what is read of one environment, and what is forgotten of it."""

from cli.all_in_one import plan

TOKEN = "ab" * 32
CONFIG = """
default = "vendor/model"
[providers.vendor]
api = "anthropic-messages"
api_key_env = "VENDOR_KEY"
"""


def environment(tmp_path, **more):
    return {
        "NYLORUN_HARNESS_URL": "ws://runtime:4200/nylorun/harness/v1",
        "NYLORUN_HARNESS_TOKEN": TOKEN,
        "NYLORUN_GATES_URL": "http://gateway:4100",
        "NYLORUN_HARNESS_ROOT": str(tmp_path / "root"),
        **more,
    }


def test_the_services_share_a_bearer_of_their_own_over_sockets_in_the_folder(tmp_path):
    parts = plan(environment(tmp_path), tmp_path)
    assert len(parts.bearer) == 64
    assert parts.bearer != TOKEN
    assert set(parts.services) == {"model-executor", "mcp-pool", "sandbox-manager"}
    assert all(one.target.startswith(f"unix:{tmp_path}/") for (one,) in parts.targets.values())


def test_what_is_secret_in_the_environment_is_forgotten_keys_of_providers_too(tmp_path):
    config = tmp_path / "providers.toml"
    config.write_text(CONFIG)
    parts = plan(
        environment(
            tmp_path,
            WHIPPLETREE_MODEL_ROUTE="direct",
            WHIPPLETREE_MODEL_CONFIG=str(config),
            VENDOR_KEY="sk-secret",
        ),
        tmp_path,
    )
    assert {"NYLORUN_HARNESS_TOKEN", "NYLORUN_GRPC_TOKEN", "VENDOR_KEY"} <= set(parts.secrets)
