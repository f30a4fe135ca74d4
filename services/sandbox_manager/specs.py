"""Turns a sandbox spec into what a backend needs (sandbox-manager 3). Never refuses: core has checked it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.jsjson import JsonValue
from services.sandbox_manager.javascript import trim
from services.sandbox_manager.network import DEFAULT_PRESET, PRESETS, Network, make_network

DEFAULT_IMAGE: Final = "python:3.13-slim"
DEFAULT_CPUS: Final = 2
DEFAULT_MEMORY_MIB: Final = 1024
LEAST_MEMORY_MIB: Final = 128
DEFAULT_IDLE_MS: Final = 15 * 60 * 1000

_MIB: Final = 2**20
_MEMORY_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_IDLE_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MEMORY: Final = re.compile(r"([0-9]+)(B|KiB|MiB|GiB|TiB)")
_IDLE: Final = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_MOST_DIGITS: Final = 15
"""Above it a number isn't exact in JavaScript and no machine has that much."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What a backend is asked for. `memory_mib` is at least 128; `idle_ms` is the manager's own."""

    key: str
    image: str
    cpus: int
    memory_mib: int
    network: Network
    idle_ms: int


def resolve_spec(spec: JsonValue, key: str) -> BackendSpec:
    """The backend spec of a workspace; what can't be read counts as absent."""
    members = _object(spec)
    resources = _object(members.get("resources"))
    network = _object(members.get("network"))
    image = members.get("image")
    cpus = resources.get("cpus")
    preset = network.get("preset")
    allow = network.get("allow")
    return BackendSpec(
        key=key,
        image=image if isinstance(image, str) else DEFAULT_IMAGE,
        cpus=cpus if isinstance(cpus, int) and not isinstance(cpus, bool) and cpus > 0 else DEFAULT_CPUS,
        memory_mib=_memory_mib(resources.get("memory")),
        network=make_network(
            preset if isinstance(preset, str) and preset in PRESETS else DEFAULT_PRESET,
            [entry for entry in allow if isinstance(entry, str)] if isinstance(allow, list) else [],
        ),
        idle_ms=_idle_ms(members.get("idle")),
    )


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _memory_mib(value: JsonValue) -> int:
    size = _measure(value, _MEMORY, _MEMORY_UNITS)
    return DEFAULT_MEMORY_MIB if size is None else max(LEAST_MEMORY_MIB, -(-size // _MIB))


def _idle_ms(value: JsonValue) -> int:
    size = _measure(value, _IDLE, _IDLE_UNITS)
    return DEFAULT_IDLE_MS if size is None else size


def _measure(value: JsonValue, form: re.Pattern[str], units: Mapping[str, int]) -> int | None:
    if not isinstance(value, str):
        return None
    match = form.fullmatch(trim(value))
    if match is None or len(match[1]) > _MOST_DIGITS or int(match[1]) == 0:
        return None
    return int(match[1]) * units[match[2]]
