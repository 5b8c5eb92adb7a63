"""Whether this server can work, and what it tells of itself. Asks the records and the node; changes nothing."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import structlog

from skerry.control.deps import Deps
from skerry.model.errors import SkerryError

T = TypeVar("T")

_DEADLINE_S = 5.0
_log = structlog.get_logger()


async def problems(deps: Deps) -> Mapping[str, str]:
    """The parts that do not answer, and why; empty when all is well. In words for everybody: no path, no secret.

    `store`: the database. `node`: it answers, has booted its runtime for trial and has taken its sandboxes over: a node
    that could not do one of these does not answer.
    """
    async with asyncio.TaskGroup() as group:
        asked = {
            "store": group.create_task(_problem("store", deps.store.ping())),
            "node": group.create_task(_problem("node", deps.provider.health())),
        }
    return {part: task.result() for part, task in asked.items() if task.result()}


async def _problem(part: str, question: Awaitable[object]) -> str:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await question
    except TimeoutError:
        return f"no answer within {_DEADLINE_S:.0f} s"
    except SkerryError as error:
        _log.info("a part is not ready", part=part, reason=error.message)
        return f"does not answer ({error.code})"
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a part, this is the place that says so
        _log.warning("a part is not ready", part=part, exc_info=error)
        return "is broken"
    return ""


async def exposition(deps: Deps) -> bytes:
    """The server's own metrics, for Prometheus. What does not answer is told by `skerry_up`."""
    async with asyncio.TaskGroup() as group:
        counted = group.create_task(_or_none(deps.store.population()))
        health = group.create_task(_or_none(deps.provider.health()))
    told = health.result()
    pool = None if told is None else (told.pool_bytes, told.pool_free_bytes)
    return deps.telemetry.render(counted.result(), pool)


async def _or_none(question: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await question
    except (SkerryError, TimeoutError):
        return None
