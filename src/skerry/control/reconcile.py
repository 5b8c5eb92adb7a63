"""The one loop that compares the records with the world and finishes what a crash or a death left.

Each rule finds some things and mends one of them at a time; a thing that another task of this process is at work on is
left alone. What repeats over time is a rule (`mending`, `keeping`), never a timer elsewhere.
"""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from skerry.control import endings, keeping, mending
from skerry.control.deps import Deps
from skerry.control.mending import HALF_MADE_AFTER_S
from skerry.control.streams import closing
from skerry.control.world import Rule, World, look
from skerry.model.errors import SkerryError
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Observed

__all__ = ["HALF_MADE_AFTER_S"]

INTERVAL_S = 3.0
_AT_ONCE = 8
_FIX_DEADLINE_S = 180
RULES: tuple[Rule[Any], ...] = (*mending.RULES, *keeping.RULES)

T = TypeVar("T")
_log = structlog.get_logger()


async def run(deps: Deps) -> None:
    """Reconcile now and every few seconds, and note deaths as they happen, until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch_deaths(deps))
        while True:
            try:
                await once(deps)
            except Exception as error:  # noqa: BLE001 (the process's one loop: a fault in a rule must not end it)
                _log.error("reconciling failed", exc_info=error)
            await deps.clock.sleep_until(deps.clock.now() + timedelta(seconds=INTERVAL_S))


async def once(deps: Deps) -> None:
    """One pass. A part that cannot be done now is logged, and found again by the next pass."""
    try:
        world = await look(deps)
    except SkerryError as error:
        _log.warning("cannot look at the world", reason=error.message)
        return
    for rule in RULES:
        await _apply(deps, world, rule)


async def _apply(deps: Deps, world: World, rule: Rule[T]) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def mend(thing: T) -> None:
        async with gate:
            try:
                async with asyncio.timeout(_FIX_DEADLINE_S):
                    await rule.fix(deps, world, thing)
                if not rule.routine:
                    deps.telemetry.repair(rule.name, mended=True)
            except (SkerryError, TimeoutError) as error:
                deps.telemetry.repair(rule.name, mended=False)
                _log.warning("not mended yet", rule=rule.name, thing=getattr(thing, "id", thing), reason=str(error))

    async with asyncio.TaskGroup() as group:
        for thing in rule.find(deps, world):
            group.create_task(mend(thing))


async def _watch_deaths(deps: Deps) -> None:
    while True:
        try:
            async with closing(deps.provider.watch()) as deaths:
                async for seen in deaths:
                    if not seen.running:
                        await _died(deps, seen)
        except SkerryError as error:
            _log.info("deaths are not told at the moment", reason=error.message)
        # The stream has ended: the node is away. `once` sees meanwhile what it would have told.
        await deps.clock.sleep_until(deps.clock.now() + timedelta(seconds=INTERVAL_S))


async def _died(deps: Deps, seen: Observed) -> None:
    cause = seen.cause or Cause.RUNTIME_DIED
    if not seen.stopped:
        await endings.sandbox_died(deps, seen.id, cause, seen.detail, generation=seen.generation)
