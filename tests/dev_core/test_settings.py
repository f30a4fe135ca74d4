"""Settings: defaults, and one line for each that can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.settings import SettingsError
from services.dev_core.main import main
from services.dev_core.settings import Address, read_settings

TOKEN = {"NYLORUN_HARNESS_TOKEN": "abc"}


def test_the_defaults_are_those_of_a_laptop() -> None:
    settings = read_settings(TOKEN)
    assert settings.http == Address("127.0.0.1", 4000)
    assert settings.harness == Address("127.0.0.1", 4200)
    assert settings.database == ".whippletree/core.db"
    assert (settings.lease_ms, settings.hold_ms, settings.deadline_ms) == (30_000, 5_000, 3_000_000)
    assert (settings.model_recovers, settings.fixture_model, settings.full_sync) == (True, False, False)


def test_every_setting_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    settings = read_settings(
        {
            "NYLORUN_HARNESS_TOKEN_FILE": str(tmp_path / "token"),
            "WHIPPLETREE_STATE_DIR": "/state",
            "WHIPPLETREE_CORE_HTTP_LISTEN": "0.0.0.0:5000",
            "WHIPPLETREE_CORE_HARNESS_LISTEN": "[::]:5200",
            "WHIPPLETREE_CORE_TOKEN": "core",
            "NYLORUN_HARNESS_ALLOWED_HOSTS": "core:5200, other:1",
            "WHIPPLETREE_CORE_ALLOWED_HOSTS": "core:5000",
            "WHIPPLETREE_CORE_SYNC": "FULL",
            "WHIPPLETREE_CORE_LEASE_MS": "1500",
            "WHIPPLETREE_CORE_HOLD_MS": "0",
            "WHIPPLETREE_CORE_DEADLINE_MS": "60000",
            "WHIPPLETREE_CORE_ACTION_TIMEOUT_MS": "1000",
            "WHIPPLETREE_CORE_MODEL_RECOVERS": "0",
            "WHIPPLETREE_CORE_FIXTURE_MODEL": "1",
        }
    )
    assert settings.harness_token == "from-file"
    assert settings.database == "/state/core.db"
    assert settings.harness == Address("::", 5200)
    assert settings.harness_hosts == ("core:5200", "other:1")
    assert (settings.lease_ms, settings.hold_ms, settings.action_timeout_ms) == (1500, 0, 1000)
    assert (settings.model_recovers, settings.fixture_model, settings.full_sync) == (False, True, True)
    assert read_settings({**TOKEN, "WHIPPLETREE_CORE_DB": ":memory:"}).database == ":memory:"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"NYLORUN_HARNESS_TOKEN": " "}, "NYLORUN_HARNESS_TOKEN"),
        ({"NYLORUN_HARNESS_TOKEN": "a b"}, "white space"),
        ({"WHIPPLETREE_CORE_HTTP_LISTEN": "4000"}, "WHIPPLETREE_CORE_HTTP_LISTEN must be host:port"),
        ({"WHIPPLETREE_CORE_HTTP_LISTEN": "127.0.0.1:65536"}, "WHIPPLETREE_CORE_HTTP_LISTEN"),
        ({"WHIPPLETREE_CORE_HTTP_LISTEN": "127.0.0.1:4200"}, "must differ"),
        ({"WHIPPLETREE_CORE_HTTP_LISTEN": "0.0.0.0:4000"}, "WHIPPLETREE_CORE_TOKEN"),
        ({"WHIPPLETREE_CORE_HARNESS_LISTEN": "0.0.0.0:4200"}, "NYLORUN_HARNESS_ALLOWED_HOSTS"),
        ({"WHIPPLETREE_CORE_LEASE_MS": "0"}, "WHIPPLETREE_CORE_LEASE_MS"),
        ({"WHIPPLETREE_CORE_SYNC": "OFF"}, "WHIPPLETREE_CORE_SYNC"),
        ({"WHIPPLETREE_CORE_MODEL_RECOVERS": "maybe"}, "WHIPPLETREE_CORE_MODEL_RECOVERS"),
    ],
)
def test_a_setting_that_can_not_be_is_named(
    change: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError, match=says):
        read_settings({**TOKEN, **change})
    assert main({**TOKEN, **change}) == 1
    assert says in capsys.readouterr().err.splitlines()[0]
