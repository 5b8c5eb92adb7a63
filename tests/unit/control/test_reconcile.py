"""After a crash or a death, one pass makes records and fleet agree again. The clock is moved by hand."""

import asyncio
from dataclasses import replace

import pytest

from skerry.control import commands, reconcile, sandboxes
from skerry.control.commands import NewCommand
from skerry.control.sandboxes import NewSandbox
from skerry.model.command import CommandCause, CommandStatus
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Sandbox
from skerry.testing.store_suite import command_of, sandbox_of

from .conftest import World, until


async def running(world: World) -> Sandbox:
    return await sandboxes.create(world.deps, world.account.id, NewSandbox())


async def state_of(world: World, sandbox: Sandbox) -> State:
    return (await world.store.get_sandbox(sandbox.id)).state


async def test_x2_a_sandbox_that_a_crash_left_half_made_fails_and_leaves_nothing(world: World) -> None:
    sandbox = await running(world)
    half = replace(sandbox_of(world.account), created_at=world.clock.now())
    await world.store.add_sandbox(half)
    await world.provider.create(sandboxes.spec_of(half))
    await reconcile.once(world.deps)
    record = await world.store.get_sandbox(half.id)
    assert (record.state, record.cause) == (State.FAILED, Cause.CREATE)
    assert set(world.provider.sandboxes) == {sandbox.id}
    assert await state_of(world, sandbox) is State.RUNNING


async def test_a_create_that_is_under_way_is_left_alone(world: World) -> None:
    world.provider.gate.clear()
    creating = asyncio.ensure_future(running(world))
    await until(lambda: world.provider.created)
    world.clock.advance(3600)
    await reconcile.once(world.deps)
    world.provider.gate.set()
    assert (await creating).state is State.RUNNING


async def test_beside_other_processes_a_half_made_sandbox_is_given_its_time(world: World) -> None:
    deps = replace(world.deps, sole=False)
    half = replace(sandbox_of(world.account), created_at=world.clock.now())
    await world.store.add_sandbox(half)
    await reconcile.once(deps)
    assert await state_of(world, half) is State.CREATING
    world.clock.advance(reconcile.HALF_MADE_AFTER_S + 1)
    await reconcile.once(deps)
    assert await state_of(world, half) is State.FAILED


@pytest.mark.parametrize("cause", [Cause.OOM, Cause.RUNTIME_DIED])
async def test_f7_a_dead_sandbox_fails_with_its_cause_and_keeps_its_files(world: World, cause: Cause) -> None:
    sandbox = await running(world)
    await world.provider.die(sandbox.id, cause, tell=False)
    await reconcile.once(world.deps)
    record = await world.store.get_sandbox(sandbox.id)
    assert (record.state, record.cause) == (State.FAILED, cause)
    await reconcile.once(world.deps)
    assert sandbox.id in world.provider.sandboxes


async def test_f34_a_restart_of_the_host_is_a_stop_with_its_cause(world: World) -> None:
    sandbox = await running(world)
    await world.provider.die(sandbox.id, Cause.HOST_RESTART, tell=False)
    await reconcile.once(world.deps)
    record = await world.in_state(sandbox, State.STOPPED)
    assert (record.cause, record.archive is not None) == (Cause.HOST_RESTART, True)


async def test_a_restart_of_the_host_is_a_failure_where_nothing_is_stored(world: World) -> None:
    sandbox = await running(world)
    await world.provider.die(sandbox.id, Cause.HOST_RESTART, tell=False)
    await reconcile.once(world.beside(archive_url="none").deps)
    assert await state_of(world, sandbox) is State.FAILED


async def test_a_sandbox_that_its_node_does_not_know_fails(world: World) -> None:
    sandbox = await running(world)
    await world.provider.destroy(sandbox.id)
    await reconcile.once(world.deps)
    record = await world.store.get_sandbox(sandbox.id)
    assert (record.state, record.cause) == (State.FAILED, Cause.RUNTIME_DIED)


async def test_a_death_of_an_older_generation_is_ignored(world: World) -> None:
    sandbox = await running(world)
    entry = world.provider.sandboxes[sandbox.id]
    entry.spec = replace(entry.spec, generation=0)
    await world.provider.die(sandbox.id, tell=False)
    await reconcile.once(world.deps)
    assert await state_of(world, sandbox) is State.RUNNING


async def test_x2_a_sandbox_that_no_record_wants_is_destroyed(world: World) -> None:
    stray = sandbox_of(world.account)
    await world.provider.create(sandboxes.spec_of(stray))
    await reconcile.once(world.deps)
    assert world.provider.sandboxes == {}


async def test_x2_a_destroy_that_a_crash_interrupted_is_finished(world: World) -> None:
    sandbox = await running(world)
    await world.store.transition(sandbox, Event.DESTROY)
    await reconcile.once(await crashed(world))
    assert await state_of(world, sandbox) is State.DESTROYED
    assert world.provider.sandboxes == {}


async def crashed(world: World) -> object:
    return (await world.crash()).deps


async def test_f34_a_command_that_ran_through_a_crash_is_followed_to_its_end(world: World) -> None:
    sandbox = await running(world)
    started = await commands.start(world.deps, world.account.id, sandbox.id, NewCommand(shell="sleep 0.2; echo done"))
    after = await world.crash()
    await reconcile.once(after.deps)
    assert after.deps.following == {started.command.id}
    await until(lambda: not after.deps.following)
    result = await commands.look_up(after.deps, world.account.id, started.command.id)
    assert (result.command.status, result.captured.stdout) == (CommandStatus.COMPLETED, b"done\n")
    await after.deps.tasks.close()


async def test_f34_a_command_that_ended_while_nobody_looked_is_recorded(world: World) -> None:
    sandbox = await running(world)
    started = await commands.start(world.deps, world.account.id, sandbox.id, NewCommand(shell="sleep 0.05; exit 5"))
    after = await world.crash()
    await asyncio.wait_for(_ended_inside(world, sandbox, started.command.id), 10)
    await reconcile.once(after.deps)
    command = await world.store.get_command(started.command.id)
    assert command.exit is not None
    assert (command.status, command.exit.code) == (CommandStatus.COMPLETED, 5)


async def _ended_inside(world: World, sandbox: Sandbox, command_id: object) -> None:
    async for _ in world.provider.guest(sandbox.id).attach(command_id):  # type: ignore[arg-type]
        pass


async def test_a_command_that_never_reached_its_sandbox_is_told_so(world: World) -> None:
    command = command_of(await running(world))
    await world.store.add_command(command)
    await reconcile.once(world.deps)
    record = await world.store.get_command(command.id)
    assert record.exit is not None
    assert (record.status, record.exit.cause) == (CommandStatus.FAILED, CommandCause.NOT_STARTED)


async def test_commands_of_a_sandbox_that_ran_out_of_memory_end_with_it(world: World) -> None:
    sandbox = await running(world)
    started = await commands.start(world.deps, world.account.id, sandbox.id, NewCommand(shell="echo part; sleep 60"))
    await world.provider.die(sandbox.id, Cause.OOM, tell=False)
    await reconcile.once(world.deps)
    result = await commands.look_up(world.deps, world.account.id, started.command.id)
    assert result.command.exit is not None
    assert (result.command.status, result.command.exit.cause) == (CommandStatus.FAILED, CommandCause.OOM)
    assert result.captured.stdout == b"part\n"


async def test_while_the_node_is_away_nothing_is_decided(world: World) -> None:
    sandbox = await running(world)
    world.provider.down = True
    await reconcile.once(world.deps)
    assert await state_of(world, sandbox) is State.RUNNING
    world.provider.down = False


async def test_x3_the_loop_looks_again_when_the_clock_says_so(world: World) -> None:
    sandbox = await running(world)
    looping = asyncio.ensure_future(reconcile.run(world.deps))
    await until(lambda: world.clock.sleepers == 1)
    await world.provider.die(sandbox.id, tell=False)
    assert await state_of(world, sandbox) is State.RUNNING
    world.clock.advance(reconcile.INTERVAL_S)
    await until(lambda: world.store.moves[-1].to_state is State.FAILED)
    looping.cancel()
    await asyncio.gather(looping, return_exceptions=True)


async def test_a_death_that_is_told_is_recorded_without_waiting_for_the_clock(world: World) -> None:
    sandbox = await running(world)
    looping = asyncio.ensure_future(reconcile.run(world.deps))
    await until(lambda: world.clock.sleepers == 1)
    await world.provider.die(sandbox.id, Cause.OOM)
    await until(lambda: world.store.moves[-1].to_state is State.FAILED)
    looping.cancel()
    await asyncio.gather(looping, return_exceptions=True)


async def test_the_loop_survives_a_node_that_comes_and_goes(world: World) -> None:
    world.provider.down = True
    looping = asyncio.ensure_future(reconcile.run(world.deps))
    await until(lambda: world.clock.sleepers == 2)
    world.provider.down = False
    sandbox = await running(world)
    world.clock.advance(reconcile.INTERVAL_S)
    await until(lambda: world.clock.sleepers == 1)
    await world.provider.die(sandbox.id)
    await until(lambda: world.store.moves[-1].to_state is State.FAILED)
    looping.cancel()
    await asyncio.gather(looping, return_exceptions=True)
