from typing import Any

import pytest

from services.sandbox_manager.network import preset_hosts
from services.sandbox_manager.specs import resolve_spec

KEY = "nylorun-tn_a-0000000000000000"


@pytest.mark.spec("sandbox-manager:19.32")
def test_a_missing_spec_has_the_defaults() -> None:
    spec = resolve_spec({}, KEY)
    assert (spec.image, spec.cpus, spec.memory_mib, spec.idle_ms) == ("python:3.13-slim", 2, 1024, 900_000)
    assert spec.network.describe() == "dev"
    assert len(spec.network.hosts) == 20
    assert "github.com" in spec.network.hosts
    assert spec.network.hosts == tuple(sorted(spec.network.hosts))


@pytest.mark.spec("sandbox-manager:19.32")
def test_hosts_beyond_the_preset_are_counted() -> None:
    assert resolve_spec({"network": {"preset": "none", "allow": ["a.b"]}}, KEY).network.describe() == (
        "none +1 host(s)"
    )


@pytest.mark.parametrize(
    ("network", "description"),
    [
        ({"preset": "none"}, "none"),
        ({"preset": "open"}, "open"),
        ({"allow": ["github.com"]}, "dev"),
        ({"allow": ["a.b", "A.B", "*.c.d", "*.C.D"]}, "dev +2 host(s)"),
        ({"preset": "no such"}, "dev"),
        ({"preset": 3, "allow": "a.b"}, "dev"),
    ],
)
def test_the_description_of_a_network(network: Any, description: str) -> None:
    assert resolve_spec({"network": network}, KEY).network.describe() == description


def test_names_are_lower_cased_sorted_and_parted_from_suffixes() -> None:
    network = resolve_spec(
        {"network": {"preset": "none", "allow": ["*.X.org", "B.c", "a.b", "b.C"]}}, KEY
    ).network
    assert network.hosts == ("a.b", "b.c")
    assert network.suffixes == (".x.org",)


def test_the_preset_has_its_twenty_hosts() -> None:
    assert len(set(preset_hosts("dev"))) == 20
    assert preset_hosts("none") == ()


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ("1GiB", 1024),
        (" 2GiB ", 2048),
        ("1MiB", 128),
        ("134217729B", 129),
        ("1 GiB", 1024),
        ("1gib", 1024),
        ("0MiB", 1024),
        ("1.5GiB", 1024),
        ("１GiB", 1024),
        (7, 1024),
        ("9" * 400 + "TiB", 1024),
    ],
)
def test_memory_is_read_or_its_default(memory: Any, mib: int) -> None:
    assert resolve_spec({"resources": {"memory": memory}}, KEY).memory_mib == mib


@pytest.mark.parametrize(
    ("idle", "ms"),
    [
        ("90s", 90_000),
        ("250ms", 250),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 900_000),
        ("soon", 900_000),
    ],
)
def test_the_idle_time_is_read_or_its_default(idle: str, ms: int) -> None:
    assert resolve_spec({"idle": idle}, KEY).idle_ms == ms


@pytest.mark.parametrize("spec", [None, [], "x", 1, {"resources": [], "network": None, "image": 4}])
def test_what_is_no_spec_counts_as_none(spec: Any) -> None:
    assert resolve_spec(spec, KEY) == resolve_spec({}, KEY)


def test_image_and_cpus_are_taken_over() -> None:
    spec = resolve_spec({"image": "debian:12", "resources": {"cpus": 4}}, KEY)
    assert (spec.image, spec.cpus) == ("debian:12", 4)
    assert resolve_spec({"resources": {"cpus": True}}, KEY).cpus == 2
