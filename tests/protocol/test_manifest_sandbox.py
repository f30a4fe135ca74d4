from __future__ import annotations

from typing import Any

import pytest

from protocol.manifest import validate_agent_manifest
from protocol.manifests.sandbox import is_allowed_host
from tests.protocol.manifests import agent, refusal, sandboxed, tool, with_capability

AT = "capabilities[0].sandbox"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"image": "img:1", "network": {}, "resources": {}, "idle": "30m"},
        {"network": {"preset": "dev", "allow": ["mirror.example.org", "*.example.org"]}},
        {"resources": {"cpus": 64, "memory": " 512MiB\n"}},
        {"resources": {"cpus": 1.0, "memory": "0001B"}, "idle": "\ufeff5ms "},
    ],
)
def test_valid_sandboxes_pass(spec: Any) -> None:
    validate_agent_manifest(sandboxed(spec))


@pytest.mark.parametrize(
    ("spec", "path", "said"),
    [
        (None, AT, "must be an object, not null"),
        ({"gpu": 1}, f"{AT}.gpu", "unknown member"),
        ({"image": ""}, f"{AT}.image", "must not be empty"),
        (
            {"network": {"preset": "all"}},
            f"{AT}.network.preset",
            "must be 'none', 'dev' or 'open', not 'all'",
        ),
        ({"network": {"allow": "a.b"}}, f"{AT}.network.allow", "must be an array"),
        (
            {"network": {"allow": ["a.b", "http://x.com"]}},
            f"{AT}.network.allow[1]",
            "is not a host name such as",
        ),
        ({"network": {"deny": []}}, f"{AT}.network.deny", "unknown member"),
        ({"resources": {"cpus": 65}}, f"{AT}.resources.cpus", "must be a whole number from 1 to 64"),
        ({"resources": {"cpus": 0}}, f"{AT}.resources.cpus", "must be a whole number"),
        ({"resources": {"cpus": 1.5}}, f"{AT}.resources.cpus", "must be a whole number"),
        ({"resources": {"cpus": True}}, f"{AT}.resources.cpus", "must be a whole number"),
        ({"resources": {"memory": "2GB"}}, f"{AT}.resources.memory", "such as '512MiB'"),
        ({"resources": {"memory": "0MiB"}}, f"{AT}.resources.memory", "above zero"),
        ({"resources": {"memory": "2 MiB"}}, f"{AT}.resources.memory", "not '2 MiB'"),
        ({"resources": {"memory": "٢MiB"}}, f"{AT}.resources.memory", "must be a size"),
        ({"resources": {"memory": 5}}, f"{AT}.resources.memory", "must be a string"),
        ({"idle": "soon"}, f"{AT}.idle", "must be a duration above zero such as '30m'"),
        ({"idle": "0s"}, f"{AT}.idle", "above zero"),
        ({"idle": "\x1c5s"}, f"{AT}.idle", "must be a duration"),
    ],
)
def test_a_broken_rule_is_refused_at_its_place(spec: Any, path: str, said: str) -> None:
    error = refusal(sandboxed(spec))
    assert error.path == path
    assert said in error.message


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.org", True),
        ("EXAMPLE.org", True),
        ("*.a-b.example.org", True),
        ("1.example", True),
        ("a" * 63 + ".b", True),
        ("localhost", False),
        ("*.org", False),
        ("a.*.org", False),
        ("*", False),
        ("", False),
        ("a..b", False),
        (".a.b", False),
        ("a.b.", False),
        ("-a.b", False),
        ("a-.b", False),
        ("a_b.c", False),
        ("é.de", False),
        ("ſ.de", False),
        ("1.2.3.4", False),
        ("*.2.3", False),
        ("a.b:80", False),
        ("a.b\n", False),
        ("a" * 64 + ".b", False),
        (".".join(["a" * 62] * 4) + ".b", True),
        (".".join(["a" * 62] * 4) + ".bbb", False),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    assert is_allowed_host(host) is allowed


def test_a_capability_with_a_sandbox_declares_its_tools_itself() -> None:
    error = refusal(with_capability(sandbox={}, tools=[tool("bash"), tool("read")]))
    assert error.path == AT
    assert error.message.endswith("missing: write, edit, grep, glob")
    elsewhere = sandboxed({})
    elsewhere["capabilities"][0].pop("sandbox")
    elsewhere["capabilities"].append({"id": "d", "type": "agent", "sandbox": {}})
    assert "missing: bash" in refusal(elsewhere).message


def test_only_one_capability_has_a_sandbox() -> None:
    first = sandboxed({})["capabilities"][0]
    second = {**first, "id": "d", "tools": []}
    error = refusal(agent(capabilities=[first, second]))
    assert error.path == "capabilities[1].sandbox"
