"""The settings of the gate's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from services.tool_gate.settings import SettingsError, read_settings
from services.tool_gate.tokens import FileKeys, RunTokens
from tests.tool_gate.support import KEY, jwks, token


def pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_defaults():
    settings = read_settings({})
    assert (settings.host, settings.port) == ("127.0.0.1", 4100)
    assert settings.core_url == "http://127.0.0.1:4000"
    assert settings.keys_url == "http://127.0.0.1:4000/.well-known/jwks.json"
    assert settings.database == Path(".whippletree/tool-gate.db")
    assert (settings.idle_s, settings.sweep_s, settings.request_s, settings.drain_s) == (900, 60, 60, 10)
    assert not settings.faults
    assert not settings.config.allow_private


def test_everything_can_be_set(tmp_path):
    config, secret = tmp_path / "gate.toml", tmp_path / "core"
    config.write_text("allow_private = true")
    secret.write_text("core-secret\n")
    settings = read_settings(
        {
            "WHIPPLETREE_TOOL_GATE_LISTEN": "[::1]:5000",
            "WHIPPLETREE_TOOL_GATE_CORE_URL": "https://core.example/",
            "WHIPPLETREE_TOOL_GATE_KEYS_URL": "https://keys.example/set",
            "WHIPPLETREE_CORE_TOKEN_FILE": str(secret),
            "WHIPPLETREE_TOOL_GATE_CONFIG": str(config),
            "WHIPPLETREE_TOOL_GATE_FAULTS": "on",
            "WHIPPLETREE_STATE_DIR": str(tmp_path),
            "WHIPPLETREE_TOOL_GATE_IDLE_MS": "1000",
            "WHIPPLETREE_TOOL_GATE_SWEEP_MS": "100",
            "WHIPPLETREE_TOOL_GATE_REQUEST_MS": "5000",
            "WHIPPLETREE_TOOL_GATE_DRAIN_MS": "250",
        }
    )
    assert (settings.host, settings.port, settings.core_url) == ("::1", 5000, "https://core.example")
    assert (settings.keys_url, settings.core_token) == ("https://keys.example/set", "core-secret")
    assert settings.database == tmp_path / "tool-gate.db"
    assert settings.config.allow_private
    assert settings.faults
    assert (settings.idle_s, settings.sweep_s, settings.request_s, settings.drain_s) == (1, 0.1, 5, 0.25)
    assert "core-secret" not in repr(settings)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"WHIPPLETREE_TOOL_GATE_LISTEN": "4100"}, "WHIPPLETREE_TOOL_GATE_LISTEN must be host:port."),
        ({"WHIPPLETREE_TOOL_GATE_LISTEN": "0.0.0.0:4100"}, "WHIPPLETREE_TOOL_GATE_ALLOWED_HOSTS is required"),
        ({"WHIPPLETREE_TOOL_GATE_CORE_URL": "ws://x"}, "WHIPPLETREE_TOOL_GATE_CORE_URL must be"),
        ({"WHIPPLETREE_TOOL_GATE_KEYS_FILE": "/nowhere"}, "WHIPPLETREE_TOOL_GATE_KEYS_FILE: /nowhere can't"),
        (
            {"WHIPPLETREE_TOOL_GATE_CONFIG": "/nowhere"},
            "WHIPPLETREE_TOOL_GATE_CONFIG: /nowhere can't be read",
        ),
        (
            {
                "WHIPPLETREE_TOOL_GATE_FAULTS": "on",
                "WHIPPLETREE_TOOL_GATE_LISTEN": "0.0.0.0:1",
                "WHIPPLETREE_TOOL_GATE_ALLOWED_HOSTS": "gate:1",
            },
            "must listen on a loopback address",
        ),
    ],
)
def test_what_is_wrong_is_named(environ, says):
    with pytest.raises(SettingsError) as raised:
        read_settings(environ)
    assert says in str(raised.value)


@pytest.mark.parametrize("content", [json.dumps(jwks()).encode(), pem(KEY)])
async def test_keys_come_from_a_key_set_or_from_pem(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    settings = read_settings({"WHIPPLETREE_TOOL_GATE_KEYS_FILE": str(path)})
    assert settings.keys is not None
    grant = await RunTokens(FileKeys(settings.keys)).grant(f"Bearer {token('s', 3)}")
    assert (grant.session_id, grant.epoch, grant.issuer) == ("s", 3, "tn_dev")


RSA = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [1, {"kty": "RSA"}, {"kty": "EC", "crv": "P-256", "x": "!", "y": "!"}]}',
        pem(RSA),
        pem(ec.generate_private_key(ec.SECP384R1())),
    ],
)
def test_files_without_a_key_are_refused(tmp_path, content):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="WHIPPLETREE_TOOL_GATE_KEYS_FILE"):
        read_settings({"WHIPPLETREE_TOOL_GATE_KEYS_FILE": str(path)})


def test_a_file_and_a_url_of_keys_exclude_each_other(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(pem(KEY))
    both = {"WHIPPLETREE_TOOL_GATE_KEYS_FILE": str(path), "WHIPPLETREE_TOOL_GATE_KEYS_URL": "http://x/"}
    with pytest.raises(SettingsError, match="are both set"):
        read_settings(both)
