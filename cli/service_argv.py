"""The `--service` form of the command line, as the original's image uses it (operations 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OURS = ("harness", "model-executor", "mcp-pool", "sandbox-manager", "dev-core", "tool-gate")
"""What this program runs. `harness` is the gateway, or all-in-one when no target is set."""

ORIGINAL_GROUPS = (frozenset({"core", "loop"}), frozenset({"gates", "keys", "egress"}))
"""Services of the original that only its own image runs; each group may share a process there."""

USAGE = f"usage: whippletree --service {' | '.join(OURS)}"


class ArgvError(ValueError):
    """The command line is wrong; the text is one line for people."""


@dataclass(frozen=True, slots=True)
class ServiceChoice:
    """The one service to run."""

    service: str


def parse_service(argv: Sequence[str]) -> ServiceChoice:
    """Reads `--service NAME` or `--service=NAME`. Raises ArgvError."""
    value: str | None = None
    role: str | None = None
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, given = word.partition("=")
        if flag not in ("--service", "--role"):
            raise ArgvError(f"Unknown argument '{word}'. {USAGE}")
        if not equals:
            if not rest or rest[0].startswith("-"):
                raise ArgvError(f"{flag} needs a value. {USAGE}")
            given = rest.pop(0)
        if flag == "--service":
            if value is not None:
                raise ArgvError(f"--service may be given only once. {USAGE}")
            value = given
        else:
            role = given
    if role is not None and value is not None:
        raise ArgvError(f"--role and --service can't be given together. {USAGE}")
    if value is None:
        raise ArgvError(
            f"--role selects services of the Nylorun core, which this program does not run. {USAGE}"
        )
    return ServiceChoice(_one_of_ours(value))


def _one_of_ours(value: str) -> str:
    names = [name.strip() for name in value.split(",")]
    if any(not name for name in names):
        raise ArgvError(f"--service has an empty name in '{value}'. {USAGE}")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ArgvError(f"--service names '{duplicates[0]}' twice. {USAGE}")
    known = set(OURS) | {name for group in ORIGINAL_GROUPS for name in group}
    for name in names:
        if name == "all":
            raise ArgvError(f"--service all is not possible: each service is a process of its own. {USAGE}")
        if name == "sandboxd":
            raise ArgvError(f"--service sandboxd is not in this release. {USAGE}")
        if name not in known:
            raise ArgvError(f"--service names '{name}', which does not exist. {USAGE}")
    if len(names) > 1:
        ours = [name for name in names if name in OURS]
        if ours or not any(set(names) <= group for group in ORIGINAL_GROUPS):
            raise ArgvError(f"The services {', '.join(names)} may not share a process. {USAGE}")
    if names[0] not in OURS:
        raise ArgvError(
            f"'{value}' is a service of the Nylorun core's own image; this program does not run it. {USAGE}"
        )
    return names[0]
