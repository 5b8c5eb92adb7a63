"""Rules that mend what a crash or a death left of sandboxes and commands; and small housekeeping of the records."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from skerry.control import commands, endings, making, repeats, sandboxes, startup, stopping
from skerry.control.deps import Deps
from skerry.control.world import Rule, World
from skerry.model.command import Command, CommandCause, CommandKind
from skerry.model.ids import KeyId, SandboxId
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Sandbox

# With other processes on the database: how long one of them may be at work on a create before it counts as dead.
HALF_MADE_AFTER_S = sandboxes.CREATE_DEADLINE_S + 30
_UNSTARTED_AFTER_S = 30


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
    await making.fail(deps, sandbox, "The server was interrupted while it made this sandbox. Create another.")


def _dead(deps: Deps, world: World) -> Iterable[Sandbox]:
    for sandbox in world.expected:
        seen = world.observed.get(sandbox.id)
        if seen is None or (not seen.running and seen.generation >= sandbox.generation):
            yield sandbox


async def _fail_dead(deps: Deps, world: World, sandbox: Sandbox) -> None:
    seen, cause, detail = world.observed.get(sandbox.id), Cause.RUNTIME_DIED, "Its node does not know it any more."
    if seen is not None:
        # A node that ends stops its sandboxes, as the host's restart does.
        cause = Cause.HOST_RESTART if seen.stopped else seen.cause or cause
        detail = seen.detail
    await endings.sandbox_died(deps, sandbox.id, cause, detail, generation=sandbox.generation)
    now = await deps.store.get_sandbox(sandbox.id)
    if now.state is State.STOPPING:
        stopping.carry_on(deps, now)


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
        await endings.end_command(deps, command, endings.lost_with_sandbox(deps, command, sandbox))
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


def _used_sandboxes(deps: Deps, _world: World) -> Iterable[Mapping[SandboxId, datetime]]:
    used = deps.uses.unwritten(deps.clock.now())
    return [used] if used else []


async def _write_used_sandboxes(deps: Deps, _world: World, used: Mapping[SandboxId, datetime]) -> None:
    await deps.store.touch_sandboxes(used)
    deps.uses.written(used, deps.clock.now())


RULES: tuple[Rule[Any], ...] = (
    Rule("half-made sandboxes fail", _half_made, _fail_half_made),
    Rule("dead sandboxes fail", _dead, _fail_dead),
    Rule("sandboxes that no record wants are destroyed", _unwanted, _destroy_unwanted),
    Rule("begun destroys are finished", _half_destroyed, _finish_destroy),
    Rule("commands that nobody watches are settled or watched", _unwatched, _settle),
    Rule("sandboxes that came up are started up", _not_started_up, _start_up),
    Rule("requests that are a day old are forgotten", _old_requests, _forget_requests, routine=True),
    Rule("keys that were used say when", _used_keys, _write_used_keys, routine=True),
    Rule("sandboxes that were used say when", _used_sandboxes, _write_used_sandboxes, routine=True),
)
