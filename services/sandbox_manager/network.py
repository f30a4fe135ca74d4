"""Network rules of a workspace as a spec gives them (sandbox-manager 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DEV_REVERSED: Final = (
    "org.npmjs.registry",
    "com.yarnpkg.registry",
    "org.pypi",
    "org.pythonhosted.files",
    "io.crates",
    "io.crates.index",
    "io.crates.static",
    "org.golang.proxy",
    "org.golang.sum",
    "org.debian.deb",
    "org.debian.security",
    "com.ubuntu.archive",
    "com.ubuntu.security",
    "com.ubuntu.ports",
    "com.github",
    "com.github.api",
    "com.github.codeload",
    "com.githubusercontent.objects",
    "com.githubusercontent.raw",
    "com.gitlab",
)
"""Hosts of the preset `dev`, labels from the right, which is how rules are matched."""

PRESETS: Final = ("none", "dev", "open")
DEFAULT_PRESET: Final = "dev"


def preset_hosts(preset: str) -> tuple[str, ...]:
    """The hosts that a preset allows by itself."""
    if preset != "dev":
        return ()
    return tuple(".".join(reversed(name.split("."))) for name in _DEV_REVERSED)


@dataclass(frozen=True, slots=True)
class Network:
    """What a workspace may reach: `hosts` exactly, and every name that ends with one of `suffixes`.

    Both are lower-case, sorted and without doubles; a suffix begins with a dot.
    """

    preset: str
    hosts: tuple[str, ...]
    suffixes: tuple[str, ...]

    def describe(self) -> str:
        """The text that events carry: the preset, and how many hosts come on top of it."""
        extra = len(self.hosts) + len(self.suffixes) - len(set(preset_hosts(self.preset)))
        return f"{self.preset} +{extra} host(s)" if extra > 0 else self.preset


def make_network(preset: str, allow: list[str]) -> Network:
    """The rules of a preset and a list of host names and `*.suffix` entries."""
    hosts = set(preset_hosts(preset))
    suffixes = set()
    for entry in allow:
        name = entry.lower()
        if name.startswith("*."):
            suffixes.add(name[1:])
        else:
            hosts.add(name)
    return Network(preset, tuple(sorted(hosts)), tuple(sorted(suffixes)))
