"""Starts one process of the stack, as a sub-command or `--service NAME`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Final

MODULES: Final[Mapping[str, str]] = {
    "model-executor": "services.model_executor.main",
    "mcp-pool": "services.mcp_pool.main",
    "sandbox-manager": "services.sandbox_manager.main",
    "dev-core": "services.dev_core.main",
    "tool-gate": "services.tool_gate.main",
}


def run_service(name: str) -> int:
    """Runs one of the services or the development core; the exit code."""
    return int(importlib.import_module(MODULES[name]).main(os.environ))


def run_harness() -> int:
    """`--service harness`: the split gateway when any target is set, else all-in-one (operations 12.1)."""
    from gateway.settings import is_split

    return run_gateway() if is_split(os.environ) else run_all_in_one()


def run_gateway() -> int:
    """Runs the split gateway; the exit code."""
    from cli.gateway_process import main
    from gateway.settings import is_split

    if not is_split(os.environ):
        print(
            "The gateway needs the addresses of its services: set NYLORUN_MODEL_EXECUTOR_TARGET, "
            "NYLORUN_MCP_POOL_TARGET and NYLORUN_SANDBOX_MANAGER_TARGET, or run `whippletree all-in-one`.",
            file=sys.stderr,
        )
        return 1
    return main(os.environ)


def run_all_in_one() -> int:
    """Runs gateway and services in one process; the exit code."""
    from cli.all_in_one import main

    return main(os.environ)
