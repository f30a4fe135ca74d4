"""The runners there are: every module of `tests.vectors.runners` that names its kinds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.vectors import runners
from tests.vectors.case import Case

Run = Callable[[str, Path], Iterator[Case]]


def load_runners() -> dict[str, Run]:
    """The runner of each kind."""
    found: dict[str, Run] = {}
    for info in pkgutil.iter_modules(runners.__path__, f"{runners.__name__}."):
        module = importlib.import_module(info.name)
        for kind in getattr(module, "KINDS", ()):
            if kind in found:
                raise RuntimeError(f"two runners for {kind}")
            found[kind] = module.run
    return found


def run_file(run: Run, kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file; a runner that breaks down is one more failed case."""
    try:
        yield from run(kind, path)
    except Exception as error:  # noqa: BLE001 - the report must go on with the next file
        yield Case(path.name, "failed", f"the runner broke down: {type(error).__name__}: {error}")
