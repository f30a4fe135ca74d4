"""Whether `up` starts a Tool Gate, and what it gives it: its file, and the credentials that the file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.tool_gate.credentials import CONFIG, ConfigInvalid, credential_variables

FILE: Final = "tool-gate.toml"
"""In the state folder: used when it is there and no other file is named."""


class GateChoiceError(Exception):
    """The gate's file can't be used; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class GateChoice:
    """A gate to be started. `variables` are those that hold credentials."""

    config: Path | None = None
    variables: tuple[str, ...] = ()

    def settings(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What the gate's process gets for it."""
        given = {name: environ[name] for name in self.variables if name in environ}
        return given if self.config is None else given | {CONFIG: str(self.config)}


def choose_gate(environ: Mapping[str, str], folder: Path) -> GateChoice | None:
    """The gate to start; None when NYLORUN_GATES_URL names another one. Raises GateChoiceError."""
    if environ.get("NYLORUN_GATES_URL", "").strip():
        return None
    named = environ.get(CONFIG, "").strip()
    path = Path(named) if named else folder / FILE
    if not named and not path.exists():
        return GateChoice()
    try:
        return GateChoice(path.absolute(), credential_variables(str(path)))
    except ConfigInvalid as error:
        raise GateChoiceError(f"{CONFIG if named else path}: {error}.") from None
