"""What a checkpoint's engine version promises: the one place where profiles of the engine differ.

A run goes on under the rules it was started with, so code asks the checkpoint's profile and never the
version of this program (agent-engine 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CHECKPOINT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Profile:
    """The rules of one engine version."""

    engine_version: str
    manifest_schema_version: int


_PROFILES: Final = {
    "hosted-3": Profile("hosted-3", manifest_schema_version=4),
}


def profile_of(engine_version: object) -> Profile | None:
    """The profile of an engine version, or None for one that this engine can't continue."""
    return _PROFILES.get(engine_version) if isinstance(engine_version, str) else None
