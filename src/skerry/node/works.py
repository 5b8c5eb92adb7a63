"""What goes on with trees for a long time, in the background of their sandboxes: archives and fetches.

A resume or a destroy does not wait for them: it breaks them off, and goes on when nothing reads the tree any more.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from skerry.model.errors import Conflict
from skerry.model.ids import TreeId

Task = asyncio.Task[Exception | None]


class Works:
    """The works of one node. They run in `group`."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: dict[TreeId, set[Task]] = {}
        self._closed: Counter[TreeId] = Counter()

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    @property
    def trees(self) -> set[TreeId]:
        """Those with which something goes on."""
        return set(self._tasks)

    def start(self, tree: TreeId, work: Coroutine[Any, Any, None]) -> Task:
        """Begin a work on a tree; `outcome` has to be awaited.

        Raises:
            Conflict: Somebody needs the tree for himself now.
        """
        if self._closed[tree]:
            work.close()
            raise _broken_off(tree)
        task = self._group.create_task(_caught(work), name="tree")
        self._tasks.setdefault(tree, set()).add(task)
        task.add_done_callback(lambda _: self._ended(tree, task, work))
        return task

    def _ended(self, tree: TreeId, task: Task, work: Coroutine[Any, Any, None]) -> None:
        work.close()  # cancelled before its first step, it would never have been awaited
        self._tasks[tree].discard(task)
        if not self._tasks[tree]:
            del self._tasks[tree]

    async def outcome(self, tree: TreeId, task: Task) -> None:
        """Wait for a work's end, and raise its error. A caller that goes away ends it, and is held until it has.

        Raises:
            Conflict: It was broken off.
        """
        gone: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                if gone is None:
                    task.cancel()
                gone = error
        if gone is not None:
            raise gone
        if task.cancelled():
            raise _broken_off(tree)
        if (error := task.result()) is not None:
            raise error

    @asynccontextmanager
    async def closed(self, tree: TreeId) -> AsyncGenerator[None]:
        """Break off what goes on with a tree, and let nothing begin within."""
        self._closed[tree] += 1
        try:
            tasks = list(self._tasks.get(tree, ()))
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            yield
        finally:
            self._closed[tree] -= 1
            if not self._closed[tree]:
                del self._closed[tree]


async def _caught(work: Coroutine[Any, Any, None]) -> Exception | None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - raised again by `outcome`, where it belongs
        return error
    return None


def _broken_off(tree: TreeId) -> Conflict:
    return Conflict(
        f"What was being done with {tree} was broken off: it is being resumed or removed.", code="broken_off"
    )
