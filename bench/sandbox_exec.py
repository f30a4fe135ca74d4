"""What a command in a workspace costs beside the sandbox itself.

`true` is run by the tool `bash` through the gateway's client, gRPC and the sandbox-manager, and in turn with it
by hand: in a bubblewrap with the namespaces and mounts of the driver, as the user that commands run as, and in a
just-bash of this process that has already run commands.

Figures, in milliseconds, for each driver:
  call_ms_*_DRIVER     the whole call
  added_ms_p50_DRIVER  the difference to running it by hand, at the median; the budget of bwrap is 8, that of
                       emulated 3
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from just_bash import Bash

from bench.environment import run_on_uvloop
from bench.result import BenchResult
from bench.sandbox_stage import BWRAP, DRIVERS, EMULATED, ServedSandbox, by_hand, served_sandbox
from bench.turns import Variant, p50, p99, take_turns
from services.sandbox_manager.bwrap.binary import find_bwrap
from services.sandbox_manager.bwrap.flags import ENVIRONMENT, system_flags
from services.sandbox_manager.bwrap.view import plain_starter
from services.sandbox_manager.drivers import VirtualDriver, workspaces_identity
from services.sandbox_manager.settings import DEFAULT_UID

COMMAND = "true"
WARM_UP = 10
BOUND_S = 600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--calls", type=int, default=200, help="commands per way (default %(default)s)")
    parser.add_argument("--drivers", default=",".join(DRIVERS), help="drivers (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    drivers = [name for name in DRIVERS if name in flags.drivers.split(",")]
    return run_on_uvloop(lambda: _measure(drivers, flags.calls))


async def _measure(drivers: Sequence[VirtualDriver], calls: int) -> BenchResult:
    figures: dict[str, float] = {}
    baseline: dict[str, float] = {}
    for driver in drivers:
        async with AsyncExitStack() as stack, asyncio.timeout(BOUND_S):
            served = await stack.enter_async_context(served_sandbox(driver))
            await served.call("bash", {"command": COMMAND})
            variants = {"call": _call(served), "hand": _HANDS[driver](served.folder())}
            samples = await take_turns(variants, calls, min(WARM_UP, calls))
        figures[f"call_ms_p50_{driver}"] = p50(samples["call"])
        figures[f"call_ms_p99_{driver}"] = p99(samples["call"])
        figures[f"added_ms_p50_{driver}"] = p50(samples["call"]) - p50(samples["hand"])
        baseline[f"hand_ms_p50_{driver}"] = p50(samples["hand"])
        baseline[f"hand_ms_p99_{driver}"] = p99(samples["hand"])
    return BenchResult("sandbox_exec", figures, baseline)


def _call(served: ServedSandbox) -> Variant:
    async def call() -> None:
        output = await served.call("bash", {"command": COMMAND})
        assert output["exitCode"] == 0, output

    return call


def _bwrap_by_hand(folder: Path) -> Variant:
    program = find_bwrap()
    assert program is not None
    starter = plain_starter(program, folder.parent, workspaces_identity(DEFAULT_UID))
    own = ("--bind", str(folder / "workspace"), "/workspace", "--bind", str(folder / "tmp"), "/tmp")
    inside = ("--chdir", "/workspace", "--", "/bin/bash", "-c", COMMAND)
    words = [*starter.words, *system_flags(), *own, *inside]

    async def hand() -> None:
        by_hand(words, env=dict(ENVIRONMENT))

    return hand


def _just_bash_by_hand(folder: Path) -> Variant:
    del folder
    shell = Bash()

    async def hand() -> None:
        assert (await shell.exec(COMMAND)).exit_code == 0

    return hand


_HANDS = {BWRAP: _bwrap_by_hand, EMULATED: _just_bash_by_hand}
