"""The one loop that compares the records with the world and finishes what a crash or a death left.

Each rule finds some things and mends one of them at a time; a thing that another task of this process is at work on is
left alone. What repeats over time is a rule here, never a timer elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import structlog

from skerry.control import commands, endings, repeats, sandboxes, startup
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.command import Command, CommandCause, CommandKind, Exit
from skerry.model.errors import SkerryError
from skerry.model.ids import CommandId, KeyId, SandboxId
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Observed, Sandbox
from skerry.model.template import TemplateStatus

INTERVAL_S = 3.0
# With other processes on the database: how long one of them may be at work on a create before it counts as dead.
HALF_MADE_AFTER_S = sandboxes.CREATE_DEADLINE_S + 30
_UNSTARTED_AFTER_S = 30
_AT_ONCE = 8
_FIX_DEADLINE_S = 180
_FINISHED = (State.DESTROYED,)

T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class World:
    """One look. The order of looking matters: see `look`."""

    expected: Sequence[Sandbox]  # ran before the provider was asked
    observed: Mapping[SandboxId, Observed]
    records: Mapping[SandboxId, Sandbox]  # all that are not destroyed, read after
    building: frozenset[str]
    running: Sequence[Command]
    exits: Mapping[CommandId, Exit | None]
    due: Sequence[Sandbox]  # came up and were not started up


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    name: str
    find: Callable[[Deps, World], Iterable[T]]
    fix: Callable[[Deps, World, T], Awaitable[None]]
    routine: bool = False  # housekeeping: nothing was wrong


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


async def look(deps: Deps) -> World:
    # What runs is read before the provider is asked, what is wanted after: so whatever is made or destroyed in
    # between is neither taken for dead nor for unwanted.
    alive = [state for state in State if state not in _FINISHED]
    expected = await deps.store.list_sandboxes(states=[State.RUNNING])
    running = [c for c in await deps.store.list_commands(running=True) if c.id not in deps.following]
    observed = {each.id: each for each in await deps.provider.list()}
    exits = await deps.provider.command_exits([c.id for c in running]) if running else {}
    records = {sandbox.id: sandbox for sandbox in await deps.store.list_sandboxes(states=alive)}
    building: frozenset[str] = frozenset()
    if any(s.state is State.CREATING and s.id not in deps.creating for s in records.values()):
        states = await deps.provider.templates()
        building = frozenset(state.name for state in states if state.status is TemplateStatus.BUILDING)
    due = await deps.store.due_startups()
    return World(expected, observed, records, building, running, exits, due)


def _half_made(deps: Deps, world: World) -> Iterable[Sandbox]:
    for sandbox in world.records.values():
        if sandbox.state is State.CREATING and sandbox.id not in deps.creating:
            age_s = (deps.clock.now() - sandbox.created_at).total_seconds()
            # Another process may be at it: until its deadline, and while it waits for the template to be built.
            if deps.sole or (age_s > HALF_MADE_AFTER_S and sandbox.template not in world.building):
                yield sandbox


async def _fail_half_made(deps: Deps, _world: World, sandbox: Sandbox) -> None:
    # It may have been finished while we looked at the rest of the world.
    sandbox = await deps.store.get_sandbox(sandbox.id)
    if sandbox.state is not State.CREATING:
        return
    await deps.provider.destroy(sandbox.id)
    await sandboxes.fail_create(deps, sandbox, "The server was interrupted while it made this sandbox. Create another.")


def _dead(deps: Deps, world: World) -> Iterable[Sandbox]:
    for sandbox in world.expected:
        seen = world.observed.get(sandbox.id)
        if seen is None or (not seen.running and seen.generation >= sandbox.generation):
            yield sandbox


async def _fail_dead(deps: Deps, world: World, sandbox: Sandbox) -> None:
    seen = world.observed.get(sandbox.id)
    if seen is None:
        await endings.sandbox_died(deps, sandbox.id, Cause.RUNTIME_DIED, "Its node does not know it any more.")
    else:
        await endings.sandbox_died(deps, sandbox.id, seen.cause or Cause.RUNTIME_DIED, seen.detail)


def _unwanted(deps: Deps, world: World) -> Iterable[SandboxId]:
    for seen in world.observed.values():
        record = world.records.get(seen.id)
        # A failed sandbox keeps its files until its owner destroys it; a failed create has none.
        if seen.id not in deps.creating and (
            record is None or (record.state is State.FAILED and record.cause is Cause.CREATE)
        ):
            yield seen.id


async def _destroy_unwanted(deps: Deps, _world: World, sandbox_id: SandboxId) -> None:
    await deps.provider.destroy(sandbox_id)


def _half_destroyed(_deps: Deps, world: World) -> Iterable[Sandbox]:
    return [sandbox for sandbox in world.records.values() if sandbox.state is State.DESTROYING]


async def _finish_destroy(deps: Deps, _world: World, sandbox: Sandbox) -> None:
    await sandboxes.finish_destroy(deps, sandbox)


def _unwatched(_deps: Deps, world: World) -> Iterable[Command]:
    return world.running


async def _settle(deps: Deps, world: World, command: Command) -> None:
    if command.id in deps.following:
        return  # taken up since we looked
    if command.id in world.exits:
        exit = world.exits[command.id]
        if exit is not None:
            await endings.end_command(deps, command, exit)
        else:
            commands.adopt(deps, command)
        return
    sandbox = await deps.store.get_sandbox(command.sandbox_id)
    if sandbox.state is not State.RUNNING:
        await endings.end_command(deps, command, endings.lost_with_sandbox(deps, command, sandbox.cause))
    elif deps.sole or (deps.clock.now() - command.started_at).total_seconds() > _UNSTARTED_AFTER_S:
        if command.kind is CommandKind.STARTUP and await startup.resume_recorded(deps, sandbox, command):
            return
        detail = "The server was interrupted before the command reached its sandbox. Run it again."
        await endings.end_command(deps, command, endings.unknown_exit(CommandCause.NOT_STARTED, detail))


def _not_started_up(_deps: Deps, world: World) -> Iterable[Sandbox]:
    return [sandbox for sandbox in world.due if sandbox.id in world.observed]


async def _start_up(deps: Deps, _world: World, sandbox: Sandbox) -> None:
    await startup.run_due(deps, sandbox)


def _old_requests(deps: Deps, _world: World) -> Iterable[datetime]:
    yield deps.clock.now() - repeats.KEEP


async def _forget_requests(deps: Deps, _world: World, before: datetime) -> None:
    await deps.store.forget_requests(before)


def _used_keys(deps: Deps, _world: World) -> Iterable[Mapping[KeyId, datetime]]:
    used = deps.keys.unwritten(deps.clock.now())
    return [used] if used else []


async def _write_used_keys(deps: Deps, _world: World, used: Mapping[KeyId, datetime]) -> None:
    await deps.store.touch_keys(used)
    deps.keys.written(used)


RULES: tuple[Rule[Any], ...] = (
    Rule("half-made sandboxes fail", _half_made, _fail_half_made),
    Rule("dead sandboxes fail", _dead, _fail_dead),
    Rule("sandboxes that no record wants are destroyed", _unwanted, _destroy_unwanted),
    Rule("begun destroys are finished", _half_destroyed, _finish_destroy),
    Rule("commands that nobody watches are settled or watched", _unwatched, _settle),
    Rule("sandboxes that came up are started up", _not_started_up, _start_up),
    Rule("requests that are a day old are forgotten", _old_requests, _forget_requests, routine=True),
    Rule("keys that were used say when", _used_keys, _write_used_keys, routine=True),
)


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
                        await endings.sandbox_died(deps, seen.id, seen.cause or Cause.RUNTIME_DIED, seen.detail)
        except SkerryError as error:
            _log.info("deaths are not told at the moment", reason=error.message)
        # The stream has ended: the node is away. `once` sees meanwhile what it would have told.
        await deps.clock.sleep_until(deps.clock.now() + timedelta(seconds=INTERVAL_S))
