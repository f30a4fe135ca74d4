"""Runs a process's main coroutine: signals, the loop, the exit code (operations 4.2 and 12.10)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from services.common.logs import error_text, get_logger
from services.common.settings import SettingsError

GC_THRESHOLDS: Final = (5_000, 20, 20)
"""Calls make few cycles; with Python's own 700 a collection falls into every third one."""

_LEFTOVERS_S: Final = 2.0
"""How long tasks that are left at the end may take to notice that they are cancelled."""


class StartFailed(Exception):
    """A process can't start; the text is one line for the person who started it."""


def run_process(main: Callable[[asyncio.Event], Awaitable[None]], uvloop: bool) -> int:
    """Runs `main(stop)` and returns the exit code: 0 after a stop, 1 when it failed (said on stderr).

    SIGTERM and SIGINT set `stop`; later ones are ignored. Tasks that are left at the end are cancelled and
    waited for at most 2 s; when some ignore it, the process exits at once with the same code.
    """
    _settle_garbage_collector()
    loop = _new_loop(uvloop)
    asyncio.set_event_loop(loop)
    code, stubborn = 1, False
    try:
        code = loop.run_until_complete(_run(main))
        stubborn = _cancel_leftovers(loop)
        if not stubborn:
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        if stubborn:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        asyncio.set_event_loop(None)
        loop.close()
    return code


def _settle_garbage_collector() -> None:
    """What was made by importing lives as long as the process: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _new_loop(uvloop: bool) -> asyncio.AbstractEventLoop:
    if uvloop and sys.platform != "win32":
        import uvloop as uvloop_module

        return uvloop_module.new_event_loop()
    install_child_watcher()
    return asyncio.new_event_loop()


def install_child_watcher() -> None:
    """Lets asyncio's own subprocess functions see exits through pidfds too: 3.11 starts a thread per child.

    To be called on the main thread before the loop starts children. Newer Pythons do it by themselves.
    """
    if sys.version_info >= (3, 12) or not hasattr(os, "pidfd_open"):
        return
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return
    asyncio.set_child_watcher(asyncio.PidfdChildWatcher())


async def _run(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await main(stop)
    except (SettingsError, StartFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001  (the edge of the process)
        get_logger().error("process_failed", error=error_text(error))
        print(error_text(error), file=sys.stderr)
        return 1
    return 0


def _cancel_leftovers(loop: asyncio.AbstractEventLoop) -> bool:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=_LEFTOVERS_S))
    return bool(left)
