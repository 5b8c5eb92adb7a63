"""Work that goes on when whoever asked for it has left. The one place that starts a task outside a TaskGroup."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from skerry.model.errors import SkerryError

T = TypeVar("T")
_log = structlog.get_logger()


class Tasks:
    """Owns its tasks: holds them, logs what nobody expected, ends them at `close`."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start `work`. Await the task under `asyncio.shield`, so that a caller who leaves does not take it along."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        # Asking for the exception also keeps asyncio from complaining about one that no caller waited for.
        error = task.exception()
        if error is not None and not isinstance(error, SkerryError):
            _log.error("background work failed", work=task.get_name(), exc_info=error)

    async def close(self, grace_s: float = 5.0) -> None:
        """Cancel what runs and wait `grace_s` at most. What is half-done is in the records, for the next start."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=grace_s)
