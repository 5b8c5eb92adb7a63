"""Idleness on a clock that tests move: what counts as use, what keeps a sandbox awake, what becomes of an idle one."""

import asyncio
from datetime import timedelta

import pytest

from skerry.control import attachments, commands, files, idleness, inputs, reconcile, resuming, sandboxes, terminals
from skerry.control.commands import NewCommand
from skerry.control.idleness import Idleness
from skerry.control.terminals import NewTerminal
from skerry.model.lifecycle import Event, State
from skerry.model.sandbox import Sandbox

from .conftest import World, until


async def told(world: World, sandbox: Sandbox) -> Idleness:
    return await idleness.idleness(world.deps, await world.now(sandbox))


async def passes(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    await reconcile.once(world.deps)


async def test_f18_a_sandbox_that_nobody_uses_is_stopped_when_it_was_said_and_not_before(world: World) -> None:
    sandbox = await world.made(idle_timeout_s=60)
    assert await told(world, sandbox) == Idleness(sandbox.created_at + timedelta(seconds=60))
    await passes(world, 59)
    assert (await world.now(sandbox)).state is State.RUNNING
    await passes(world, 1)
    stopped = await world.in_state(sandbox, State.STOPPED)
    assert await told(world, stopped) == Idleness()


async def test_f18_where_nothing_is_stored_it_is_destroyed(world: World) -> None:
    other = world.beside(archive_url="none")
    sandbox = await other.made(idle_timeout_s=60)
    await passes(other, 60)
    await world.in_state(sandbox, State.DESTROYED)
    assert world.provider.sandboxes == {}


async def test_the_servers_idle_timeout_counts_where_none_is_given_and_zero_is_never(world: World) -> None:
    usual, never = await world.made(), await world.made(idle_timeout_s=0)
    assert usual.idle_timeout_s == world.deps.config.idle_timeout_s == 1800
    assert await told(world, never) == Idleness()
    await passes(world, 1_000_000)
    await world.in_state(usual, State.STOPPED)
    assert (await world.now(never)).state is State.RUNNING


async def test_f19_work_counts_from_its_end_and_looks_do_not_count(world: World) -> None:
    sandbox = await world.made(idle_timeout_s=60)
    world.clock.advance(30)
    await commands.run(world.deps, world.account.id, sandbox.id, NewCommand(shell="true"))
    assert (await told(world, sandbox)).reclaim_at == world.clock.now() + timedelta(seconds=60)
    world.clock.advance(30)
    await files.open_guest(world.deps, world.account.id, sandbox.id)
    expected = world.clock.now() + timedelta(seconds=60)
    world.clock.advance(30)
    await sandboxes.get(world.deps, world.account.id, sandbox.id)
    await files.open_guest(world.deps, world.account.id, sandbox.id, wake=False)
    assert (await told(world, sandbox)).reclaim_at == expected


async def test_f19_a_running_command_keeps_it_awake_and_a_startup_or_a_lone_terminal_does_not(world: World) -> None:
    busy, lone = await world.made(idle_timeout_s=60), await world.made(idle_timeout_s=60, startup_command="sleep 1000")
    await commands.start(world.deps, world.account.id, busy.id, NewCommand(shell="sleep 1000"))
    await terminals.open_terminal(world.deps, world.account.id, lone.id, NewTerminal(argv=("cat",)))
    assert await told(world, busy) == Idleness(None, ("command",))
    await passes(world, 61)
    await world.in_state(lone, State.STOPPED)
    assert (await world.now(busy)).state is State.RUNNING
    (command,) = await world.store.list_commands(sandbox_id=busy.id)
    await commands.kill(world.deps, world.account.id, command.id)
    await until(lambda: not world.deps.following)
    await passes(world, 59)
    assert (await world.now(busy)).state is State.RUNNING
    await passes(world, 1)
    await world.in_state(busy, State.STOPPED)


async def test_f19_a_terminal_with_a_client_keeps_it_awake_until_the_client_leaves(world: World) -> None:
    sandbox = await world.made(idle_timeout_s=60)
    terminal = await terminals.open_terminal(world.deps, world.account.id, sandbox.id, NewTerminal(argv=("cat",)))
    output = attachments.Attachment(world.deps, terminal).output(0)
    watching = asyncio.ensure_future(anext(output))
    await until(lambda: world.deps.uses.in_use(sandbox.id))
    assert await told(world, sandbox) == Idleness(None, ("use",))
    await passes(world, 3600)
    assert (await world.now(sandbox)).state is State.RUNNING
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await until(lambda: not world.deps.uses.in_use(sandbox.id))
    await passes(world, 59)
    assert (await world.now(sandbox)).state is State.RUNNING
    await passes(world, 1)
    await world.in_state(sandbox, State.STOPPED)


async def test_f19_an_upload_keeps_it_awake_while_it_lasts(world: World) -> None:
    sandbox = await world.made(idle_timeout_s=60)
    wanted = NewCommand(argv=("cat",), takes_input=True)
    started = await commands.start(world.deps, world.account.id, sandbox.id, wanted)
    more = asyncio.Event()

    async def chunks() -> object:
        yield b"x"
        await more.wait()

    sending = asyncio.ensure_future(inputs.send(world.deps, started.command, chunks(), end=True))  # type: ignore[arg-type]
    await until(lambda: world.deps.uses.in_use(sandbox.id))
    assert (await told(world, sandbox)).kept_awake_by == ("command", "use")
    more.set()
    await sending
    assert not world.deps.uses.in_use(sandbox.id)


async def test_uses_are_written_down_so_that_another_process_knows_of_them(world: World) -> None:
    sandbox = await world.made(idle_timeout_s=60)
    async with idleness.using(world.deps, sandbox.id):
        for _ in range(10):
            await passes(world, 20)
            assert (await world.now(sandbox)).active_at == world.clock.now()
            await reconcile.once(world.beside().deps)
    assert (await world.now(sandbox)).state is State.RUNNING


async def test_uses_are_written_down_every_few_seconds_at_most(world: World) -> None:
    sandbox = await world.made()
    await reconcile.once(world.deps)
    first = (await world.now(sandbox)).active_at
    world.deps.uses.note(sandbox.id, world.clock.now() + timedelta(seconds=1))
    await passes(world, 3)
    assert (await world.now(sandbox)).active_at == first
    await passes(world, 15)
    assert (await world.now(sandbox)).active_at == first + timedelta(seconds=1)
    assert not world.deps.uses.unwritten(world.clock.now())


async def test_a_resume_is_a_use(world: World) -> None:
    sandbox = await world.made(idle_timeout_s=60)
    await passes(world, 60)
    await world.in_state(sandbox, State.STOPPED)
    world.clock.advance(1000)
    await resuming.resume(world.deps, world.account.id, sandbox.id)
    after = await world.crash()
    await passes(after, 59)
    assert (await world.now(sandbox)).state is State.RUNNING
    await after.deps.tasks.close()


@pytest.mark.parametrize("event", [Event.STOP, Event.DESTROY])
async def test_what_is_used_between_the_look_and_the_reclaim_is_left_alone(world: World, event: Event) -> None:
    there = world if event is Event.STOP else world.beside(archive_url="none")
    sandbox = await there.made(idle_timeout_s=60)
    world.clock.advance(60)
    assert list(await idleness.overdue(there.deps, [sandbox])) == [sandbox]
    await sandboxes.awake(there.deps, world.account.id, sandbox.id)
    await idleness.reclaim(there.deps, sandbox.id)
    world.clock.advance(60)
    await commands.start(there.deps, world.account.id, sandbox.id, NewCommand(shell="sleep 100"))
    world.clock.advance(60)
    await idleness.reclaim(there.deps, sandbox.id)
    assert (await world.now(sandbox)).state is State.RUNNING
    await there.deps.tasks.close()
