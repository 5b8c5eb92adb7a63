"""Background tasks of the node: what fails in one must not end the others, and work that has begun must not be torn.

Two small functions around `asyncio.TaskGroup`, which by itself ends everything at the first error.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from skerry import logs

T = TypeVar("T")

log = structlog.get_logger()


def spawn(group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> None:
    """Run `work` in the group. An error in it is a bug: it is logged with its trace, and the node goes on."""
    task = group.create_task(_logged(work, name), name=name)
    # Cancelled before its first step, it would never have been awaited, which Python complains about.
    task.add_done_callback(lambda _: work.close())


async def _logged(work: Coroutine[Any, Any, None], name: str) -> None:
    logs.unbind_call()
    try:
        await work
    except Exception:
        log.exception("a background task failed", task=name)


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


async def through(group: asyncio.TaskGroup, work: Coroutine[Any, Any, T]) -> T:
    """Do `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = group.create_task(_caught(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    if isinstance(result, _Failed):
        raise result.error
    return result


async def _caught(work: Coroutine[Any, Any, T]) -> T | _Failed:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - raised again by `through`, where it belongs
        return _Failed(error)


def root_cause(error: BaseException, kind: type[Exception]) -> BaseException:
    """The error that matters of those that came together: the first of `kind`, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [root_cause(inner, kind) for inner in error.exceptions]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return next((leaf for leaf in leaves if isinstance(leaf, kind)), leaves[0])
