"""A request that is sent again: one thing is made, whatever crashed in between. The clock is moved by hand."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from skerry.control import commands, reconcile, repeats, sandboxes
from skerry.control.commands import NewCommand
from skerry.control.sandboxes import NewSandbox
from skerry.model.command import CommandCause, CommandStatus
from skerry.model.errors import Conflict, Refused, Unavailable
from skerry.model.lifecycle import Event, State
from skerry.model.request import Once
from skerry.model.sandbox import Sandbox
from skerry.testing.store_suite import add_account, command_of, sandbox_of

from .conftest import World, until

ONCE = Once("key", "fingerprint")
OTHER = Once("key", "another")


async def create(world: World, once: Once = ONCE) -> Sandbox:
    return await sandboxes.create(world.deps, world.account.id, NewSandbox(), once)


async def mismatch(work: Any) -> None:
    with pytest.raises(Conflict) as refused:
        await work
    assert refused.value.code == "idempotency_mismatch"


async def test_equal_creates_at_once_and_later_make_one_sandbox(world: World) -> None:
    world.provider.gate.clear()
    attempts = [asyncio.ensure_future(create(world)) for _ in range(20)]
    await until(lambda: world.provider.created)
    await mismatch(create(world, OTHER))
    world.provider.gate.set()
    made = await asyncio.gather(*attempts, create(world))
    assert len({sandbox.id for sandbox in made}) == world.provider.created == len(world.provider.sandboxes) == 1
    assert not world.deps.attempts
    await mismatch(create(world, OTHER))


async def test_keys_are_each_accounts_own(world: World) -> None:
    other = await add_account(world.store, "other")
    mine = await create(world)
    theirs = await sandboxes.create(world.deps, other.id, NewSandbox(), OTHER)
    assert mine.id != theirs.id


async def test_a_create_is_answered_again_after_a_restart_and_after_its_end(world: World) -> None:
    sandbox = await create(world)
    restarted = await world.crash()
    assert await create(restarted) == sandbox
    await sandboxes.destroy(restarted.deps, world.account.id, sandbox.id)
    assert (await create(restarted)).state is State.DESTROYED
    assert world.provider.created == 1


async def test_a_create_that_a_crash_cut_short_is_made_anew_and_leaves_one_sandbox(world: World) -> None:
    half = replace(sandbox_of(world.account), created_at=world.clock.now())
    await world.store.add_sandbox(half, ONCE)
    await world.provider.create(sandboxes.spec_of(half))
    restarted = await world.crash()
    again = asyncio.ensure_future(create(restarted))
    await until(lambda: world.clock.sleepers)  # it waits for the reconciler's word on the first attempt
    await reconcile.once(restarted.deps)
    world.clock.advance(1)
    sandbox = await again
    assert sandbox.state is State.RUNNING
    assert set(world.provider.sandboxes) == {sandbox.id} != {half.id}
    assert await create(restarted) == sandbox


async def test_a_create_that_another_process_goes_on_with_is_waited_for(world: World) -> None:
    half = replace(sandbox_of(world.account), created_at=world.clock.now())
    await world.store.add_sandbox(half, ONCE)
    again = asyncio.ensure_future(create(world))
    await until(lambda: world.clock.sleepers)
    made = await world.store.transition(half, Event.CREATED)
    world.clock.advance(1)
    assert await again == made


async def test_a_create_that_never_ends_elsewhere_is_not_waited_for_without_end(world: World) -> None:
    half = replace(sandbox_of(world.account), created_at=world.clock.now())
    await world.store.add_sandbox(half, ONCE)
    again = asyncio.ensure_future(create(world))
    await until(lambda: world.clock.sleepers)
    world.clock.advance(sandboxes.CREATE_DEADLINE_S + 1)
    with pytest.raises(Unavailable):
        await again


async def test_a_failed_create_gives_its_key_back(world: World) -> None:
    world.provider.create_error = Refused("no")
    failures = await asyncio.gather(create(world), create(world), return_exceptions=True)
    assert [type(failure) for failure in failures] == [Refused, Refused]
    world.provider.create_error = None
    sandbox = await create(world)
    assert sandbox.state is State.RUNNING
    assert await create(world) == sandbox
    await mismatch(create(world, OTHER))


async def test_a_caller_that_leaves_finds_its_sandbox_again(world: World) -> None:
    world.provider.gate.clear()
    left = asyncio.ensure_future(create(world))
    await until(lambda: world.provider.created)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    again = asyncio.ensure_future(create(world))
    world.provider.gate.set()
    assert (await again).state is State.RUNNING
    assert world.provider.created == 1


async def run(world: World, sandbox: Sandbox, shell: str, once: Once = ONCE) -> commands.Result:
    return await commands.run(world.deps, world.account.id, sandbox.id, NewCommand(shell=shell), once)


async def test_equal_commands_at_once_and_later_run_once_and_tell_the_same(world: World) -> None:
    sandbox = await create(world, Once("create", "c"))
    results = await asyncio.gather(*(run(world, sandbox, "echo hi; sleep 0.05") for _ in range(10)))
    results.append(await run(world, sandbox, "echo hi; sleep 0.05"))
    assert {result.captured.stdout for result in results} == {b"hi\n"}
    assert len({result.command.id for result in results}) == len(await world.store.list_commands()) == 1
    await mismatch(run(world, sandbox, "echo other", OTHER))


async def test_a_command_is_found_again_after_a_crash_while_it_runs(world: World) -> None:
    sandbox = await create(world, Once("create", "c"))
    left = asyncio.ensure_future(run(world, sandbox, "echo once; sleep 0.1; echo end"))
    await until(lambda: world.provider.sandboxes[sandbox.id].guest._commands)
    restarted = await world.crash()
    result = await run(restarted, sandbox, "echo once; sleep 0.1; echo end")
    await asyncio.gather(left, return_exceptions=True)
    assert (result.command.status, result.captured.stdout) == (CommandStatus.COMPLETED, b"once\nend\n")
    assert len(await world.store.list_commands()) == 1


async def test_a_command_whose_start_a_crash_prevented_is_started_by_the_next_request(world: World) -> None:
    sandbox = await create(world, Once("create", "c"))
    recorded = replace(command_of(sandbox), started_at=world.clock.now())
    await world.store.add_command(recorded, ONCE)
    restarted = await world.crash()
    result = await run(restarted, sandbox, "echo now")
    assert (result.command.id, result.captured.stdout) == (recorded.id, b"now\n")
    await reconcile.once(restarted.deps)
    assert (await world.store.get_command(recorded.id)).status is CommandStatus.COMPLETED


async def test_a_command_that_was_settled_as_never_started_gives_its_key_back(world: World) -> None:
    sandbox = await create(world, Once("create", "c"))
    recorded = replace(command_of(sandbox), started_at=world.clock.now())
    await world.store.add_command(recorded, ONCE)
    restarted = await world.crash()
    await reconcile.once(restarted.deps)
    settled = await world.store.get_command(recorded.id)
    assert settled.exit is not None and settled.exit.cause is CommandCause.NOT_STARTED
    result = await run(restarted, sandbox, "echo now")
    assert result.captured.stdout == b"now\n"
    assert result.command.id != recorded.id


async def test_a_command_is_answered_again_when_its_sandbox_is_gone(world: World) -> None:
    sandbox = await create(world, Once("create", "c"))
    first = await run(world, sandbox, "echo kept")
    await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    again = await run(world, sandbox, "echo kept")
    assert (again.command, again.captured.stdout) == (first.command, b"kept\n")


async def test_requests_are_kept_for_a_day_and_forgotten_by_the_reconciler(world: World) -> None:
    first = await create(world)
    world.clock.advance(repeats.KEEP.total_seconds() - 1)
    await reconcile.once(world.deps)
    assert (await create(world)).id == first.id
    world.clock.advance(2)
    await reconcile.once(world.deps)
    assert (await create(world, OTHER)).id != first.id
