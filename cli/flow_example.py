"""The files of the example flow: `examples/flow` of the repository, which the wheel brings along."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Final

from aiohttp import web

_PACKAGED: Final = Path(__file__).parent / "example_flow"
_REPOSITORY: Final = Path(__file__).parents[1] / "examples" / "flow"


def folder() -> Path:
    """Where the files are."""
    return _PACKAGED if _PACKAGED.is_dir() else _REPOSITORY


def manifest() -> dict[str, Any]:
    """The workflow."""
    body: dict[str, Any] = json.loads((folder() / "agent.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = body["manifest"]
    return found


def document() -> str:
    """What the workflow is given."""
    return (folder() / "document.md").read_text(encoding="utf-8")


def script() -> Path:
    """The scripted answers of its agents' model calls."""
    return folder() / "script.json"


def endpoint() -> web.Application:
    """Its functions, at `/actions`."""
    path = folder() / "endpoint.py"
    spec = importlib.util.spec_from_file_location("whippletree_example_flow", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.application()
    assert isinstance(app, web.Application)
    return app
