"""Tasks that outlive the call that starts them, and the one object that owns them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from services.common.logs import error_text, get_logger


class Tasks:
    """Keeps tasks alive, logs what they did not expect, and ends them when the owner ends.

    Unlike a TaskGroup, one task's fault does not end the others: they belong to different runs.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], *, context: Context | None = None) -> asyncio.Task[None]:
        """Starts a task; `context` holds its context variables (the caller's by default)."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            get_logger().error("harness_task_failed", error=error_text(error))

    async def close(self, limit_s: float) -> bool:
        """Cancels what is left and waits at most `limit_s`; False when something ignored it."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)
        return not self._tasks
