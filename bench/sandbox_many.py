"""Many workspaces with a command each at once.

On bubblewrap every command waits until all of them run; the emulated shell runs four at a time, the others
queue. Each then prints what its own workspace holds.

Figures, for each driver:
  finished_DRIVER        commands that gave what they should: all
  seconds_DRIVER         from the first call to the last answer
  manager_mib_DRIVER     the manager's largest size; the budget is 200 and what commands print (they print little)
  children_mib_emulated  the largest sizes of the emulated shell's children together; the budget is 400
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import psutil

from bench.environment import run_on_uvloop
from bench.process_costs import cost_of
from bench.result import BenchResult
from bench.sandbox_stage import BWRAP, DRIVERS, EMULATED, ServedSandbox, served_sandbox

HELD = "touch began; while [ ! -e go ]; do sleep 0.1; done; cat own"
LOOK_AGAIN_S = 0.1
BOUND_S = 900.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of this benchmark."""
    parser.add_argument("--workspaces", type=int, default=200, help="workspaces (default %(default)s)")
    parser.add_argument("--drivers", default=",".join(DRIVERS), help="drivers (default %(default)s)")


def run(flags: argparse.Namespace) -> BenchResult:
    """Measures."""
    drivers = [name for name in DRIVERS if name in flags.drivers.split(",")]

    async def measure() -> BenchResult:
        figures: dict[str, float] = {}
        for driver in drivers:
            async with asyncio.timeout(BOUND_S), served_sandbox(driver) as served:
                figures |= {
                    f"{name}_{driver}": value
                    for name, value in (await _measure(served, driver, flags.workspaces)).items()
                }
        return BenchResult("sandbox_many", figures)

    return run_on_uvloop(measure)


async def _measure(served: ServedSandbox, driver: str, workspaces: int) -> dict[str, float]:
    sessions = [f"ses_many_{number}" for number in range(workspaces)]
    for session in sessions:
        await served.call("write", {"path": "own", "content": session}, session)
    command = HELD if driver == BWRAP else "cat own"
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(served.call("bash", {"command": command, "timeout": 600}, session))
            for session in sessions
        ]
        if driver == BWRAP:
            await _let_go([served.folder(session) / "workspace" for session in sessions])
    took = time.perf_counter() - began
    finished = sum(call.result()["stdout"] == session for call, session in zip(calls, sessions, strict=True))
    figures = {"finished": finished, "seconds": took, "manager_mib": cost_of(served.pid).peak_mib}
    if driver == EMULATED:
        children = psutil.Process(served.pid).children(recursive=True)
        figures["children_mib"] = sum(cost_of(child.pid).peak_mib for child in children)
    return figures


async def _let_go(folders: list[Path]) -> None:
    """Waits until every command runs, and lets all of them go on."""
    waiting = folders
    while waiting := [folder for folder in waiting if not (folder / "began").exists()]:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_AGAIN_S)
    for folder in folders:
        (folder / "go").touch()
