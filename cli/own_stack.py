"""A stack that a command starts for itself when no development core answers: `whippletree up` in the background."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from cli.core_client import CoreClient, CoreError
from cli.up import state_path
from services.common.child_start import death_signal_prefix

READY_BOUND_S: Final = 75.0
STOP_BOUND_S: Final = 60.0
_POLL_S: Final = 0.1


class OwnStackFailed(Exception):
    """The stack did not start; the text says why and where its log is."""


async def answers(core: CoreClient) -> bool:
    """Whether a development core answers there."""
    try:
        await core.health()
    except CoreError:
        return False
    return True


@contextlib.asynccontextmanager
async def own_stack(core: CoreClient, model: str | None, environ: Mapping[str, str]) -> AsyncIterator[None]:
    """Runs `up` in a session of its own, so that Ctrl-C here does not end it; its output goes to `up.log` in
    the state folder. Stopped in order at the end; when this process is killed, it stops, too.

    Raises OwnStackFailed when it is not ready within 75 s.
    """
    state = state_path(environ)
    state.mkdir(parents=True, exist_ok=True)
    log = state / "up.log"
    argv = [*death_signal_prefix("TERM"), sys.executable, "-m", "cli.main", "up"]
    output = await asyncio.to_thread(log.open, "wb")
    with output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            *(() if model is None else ("--model", model)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        await _ready(core, process, log)
        yield
    finally:
        await asyncio.shield(_stop(process))


async def _ready(core: CoreClient, process: Process, log: Path) -> None:
    try:
        async with asyncio.timeout(READY_BOUND_S):
            while process.returncode is None:
                with contextlib.suppress(CoreError, KeyError, TypeError):
                    if (await core.health())["harness"]["harnesses"] > 0:
                        return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise OwnStackFailed(f"The stack was not ready within {READY_BOUND_S:g} s: see {log}.") from None
    said = await asyncio.to_thread(log.read_text, "utf-8", "replace")
    last = " ".join(said.strip().splitlines()[-1:])
    raise OwnStackFailed(f"The stack could not start: {last or 'it said nothing'} (all of it: {log})")


async def _stop(process: Process) -> None:
    """Stops it in order. Ctrl-C meanwhile is handed on: the second signal lets `up` kill everything at once."""
    if process.returncode is not None:
        return

    def terminate() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, terminate)
    terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_BOUND_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        await process.wait()
