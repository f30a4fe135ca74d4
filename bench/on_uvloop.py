"""Runs one of the product's services on uvloop, whatever loop its own process has.

    python -m bench.on_uvloop mcp-pool

mcp-pool and sandbox-manager run on asyncio's own loop, because uvloop can't start children as another
user. The comparison with a bare server wants both ends on the same loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import services.mcp_pool.main as mcp_pool
import services.mcp_pool.settings as mcp_settings
import services.sandbox_manager.main as sandbox_manager
import services.sandbox_manager.settings as sandbox_settings
from services.common.logs import configure_logging
from services.common.process import run_process


def main(name: str, environ: Mapping[str, str]) -> int:
    """Serves until a signal; the exit code."""
    configure_logging(name)
    if name == "mcp-pool":
        pool = mcp_settings.read_settings(environ)
        return run_process(lambda stop: mcp_pool.run(pool, stop), uvloop=True)
    sandbox = sandbox_settings.read_settings(environ)
    return run_process(lambda stop: sandbox_manager.run(sandbox, stop), uvloop=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], os.environ))
