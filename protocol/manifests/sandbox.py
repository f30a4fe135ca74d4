"""The sandbox specification of agent and workflow manifests (agent-engine 2)."""

from __future__ import annotations

import re
from typing import Final

from protocol.manifests.place import Place, quote
from protocol.manifests.shape import (
    JS_WHITESPACE,
    Members,
    any_array,
    choice,
    closed_object,
    filled_string,
    plain_string,
    whole_number,
)

SANDBOX_TOOLS: Final = ("bash", "read", "write", "edit", "grep", "glob")
"""The tools that a capability with a sandbox has to declare."""

_SPEC: Final = Members("", "image network resources idle")
_NETWORK: Final = Members("", "preset allow")
_RESOURCES: Final = Members("", "cpus memory")

_MAX_HOST: Final = 253
_MAX_CPUS: Final = 64
_SIZE: Final = re.compile(r"([0-9]+)(?:B|KiB|MiB|GiB|TiB)")
_DURATION: Final = re.compile(r"([0-9]+)(?:ms|s|m|h|d)")
_HOST: Final = re.compile(
    r"(?:\*\.)?[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)+",
    re.IGNORECASE | re.ASCII,
)
_NUMERIC_HOST: Final = re.compile(r"(?:\*\.)?[0-9.]+")


def check_sandbox_spec(value: object, place: Place) -> None:
    """Refuse a sandbox specification that breaks a rule; raises `ManifestInvalid`."""
    spec = closed_object(value, place, _SPEC)
    if "image" in spec:
        filled_string(spec["image"], place / "image")
    if "network" in spec:
        _check_network(spec["network"], place / "network")
    if "resources" in spec:
        _check_resources(spec["resources"], place / "resources")
    if "idle" in spec:
        expected = "a duration above zero such as '30m' (units ms, s, m, h, d)"
        _check_amount(spec["idle"], place / "idle", _DURATION, expected)


def _check_network(value: object, place: Place) -> None:
    network = closed_object(value, place, _NETWORK)
    if "preset" in network:
        choice(network["preset"], place / "preset", ("none", "dev", "open"))
    if "allow" in network:
        allow = place / "allow"
        for index, host in enumerate(any_array(network["allow"], allow)):
            if not is_allowed_host(plain_string(host, allow / index)):
                (allow / index).refuse(
                    f"{quote(host)} is not a host name such as 'example.org' or '*.example.org' "
                    "(no scheme, port, path or IP address)"
                )


def is_allowed_host(host: str) -> bool:
    """Whether a text may stand in `network.allow`: two labels or more, not only digits, 253 characters."""
    return (
        len(host) <= _MAX_HOST and _HOST.fullmatch(host) is not None and _NUMERIC_HOST.fullmatch(host) is None
    )


def _check_resources(value: object, place: Place) -> None:
    resources = closed_object(value, place, _RESOURCES)
    if "cpus" in resources:
        cpus = whole_number(resources["cpus"])
        if cpus is None or not 1 <= cpus <= _MAX_CPUS:
            (place / "cpus").refuse(f"must be a whole number from 1 to {_MAX_CPUS}")
    if "memory" in resources:
        expected = "a size above zero such as '512MiB' (units B, KiB, MiB, GiB, TiB)"
        _check_amount(resources["memory"], place / "memory", _SIZE, expected)


def _check_amount(value: object, place: Place, form: re.Pattern[str], expected: str) -> None:
    text = plain_string(value, place)
    found = form.fullmatch(text.strip(JS_WHITESPACE))
    if found is None or not found.group(1).strip("0"):
        place.refuse(f"must be {expected}, not {quote(text)}")
