"""A folder, free ports and the settings of the product's processes for one benchmark."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from cli.ports import free_ports
from cli.stack import ProcessSpec, StackPlan, process_specs
from cli.state import open_state
from services.common.logs import configure_logging
from services.common.process import GC_THRESHOLDS

T = TypeVar("T")


def run_on_uvloop(main: Callable[[], Awaitable[T]]) -> T:
    """Runs a benchmark on the loop and with the garbage collector's settings of the product's processes.

    What the product logs in this process is dropped: failures raise.
    """

    async def wrapped() -> T:
        return await main()

    configure_logging("bench", stream=_Nowhere())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(wrapped())


class _Nowhere(io.StringIO):
    def write(self, text: str, /) -> int:
        return len(text)


@contextlib.contextmanager
def stack_plan(
    answers: list[dict[str, Any]],
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[StackPlan]:
    """The plan of a stack in a temporary folder, whose model answers by this script."""
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as folder:
        state = open_state(Path(folder))
        script = Path(folder) / "script.json"
        script.write_text(json.dumps({"answers": answers}), encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        yield StackPlan(
            state=state,
            ports=free_ports(),
            environ=inherited | dict(environ or {}),
            model_script=script,
            overrides=overrides or {},
        )


_OWN = ("WHIPPLETREE_", "NYLORUN_", "OTEL_")
"""Settings of whoever runs the benchmark, which must not change what is measured."""


def spec_of(plan: StackPlan, name: str) -> ProcessSpec:
    """How one process of the plan is started."""
    return next(spec for spec in process_specs(plan) if spec.name == name)
