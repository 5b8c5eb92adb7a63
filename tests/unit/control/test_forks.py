"""Forks: independent copies of one instant; the source goes on as if nothing had happened."""

import asyncio
from dataclasses import replace

import pytest

from skerry.control import commands, forks, reconcile, sandboxes, stopping
from skerry.control.commands import NewCommand
from skerry.model.command import CommandStatus
from skerry.model.errors import Conflict, Invalid, NotFound, SkerryError, TooBusy
from skerry.model.lifecycle import State
from skerry.model.request import Once
from skerry.model.sandbox import NetworkMode, Sandbox
from skerry.testing.store_suite import add_account

from .conftest import World, until


async def fork(world: World, source: Sandbox, **how: object) -> list[Sandbox]:
    made = await forks.fork(world.deps, world.account.id, source.id, **how)  # type: ignore[arg-type]
    return [each for each in made if isinstance(each, Sandbox)]


async def with_a_file(world: World, **wanted: object) -> Sandbox:
    sandbox = await world.made(**wanted)
    world.write(sandbox, "/workspace/a")
    return sandbox


async def test_f27_a_fork_has_files_and_configuration_and_an_id_and_a_hostname_of_its_own(world: World) -> None:
    source = await with_a_file(
        world,
        template="node",
        memory_mb=77,
        network_mode=NetworkMode.NONE,
        env={"A": "b"},
        name="source",
        metadata={"m": 1},
        idle_timeout_s=99,
    )
    (made,) = await fork(world, source, metadata={"n": 2})
    world.write(made, "/workspace/a", b"its own")
    assert world.read(source, "/workspace/a") == b"kept"
    expected = replace(source, id=made.id, name=None, metadata={"n": 2}, source=source.id, updated_at=made.updated_at)
    assert replace(made, created_at=source.created_at) == expected
    hostnames = {world.provider.sandboxes[each.id].spec.hostname for each in (source, made)}
    assert len(hostnames) == 2


async def test_f27_the_source_and_what_runs_in_it_go_on(world: World) -> None:
    source = await with_a_file(world)
    started = await commands.start(world.deps, world.account.id, source.id, NewCommand(shell="sleep 0.05; echo on"))
    (made,) = await fork(world, source)
    assert list(await world.store.list_commands(sandbox_id=made.id)) == []
    result = await started.watching
    assert (result.command.status, await world.now(source)) == (CommandStatus.COMPLETED, source)


async def test_many_forks_are_of_one_instant_and_hold_nothing_afterwards(world: World) -> None:
    source = await with_a_file(world)
    world.provider.hold("create")
    forking = asyncio.ensure_future(fork(world, source, count=20))
    await until(lambda: world.provider.calls["create"] > 5)
    world.write(source, "/workspace/a", b"changed")
    world.provider.let_go("create")
    made = await forking
    assert {world.read(each, "/workspace/a") for each in made} == {b"kept"}
    assert len({each.id for each in made}) == 20
    await until(lambda: not world.provider.trees_held and not world.deps.work.held)
    assert world.provider.calls["capture"] == 1


async def test_forks_that_fail_say_so_each_and_the_others_run(world: World) -> None:
    source = await with_a_file(world)
    world.provider.hold("create")
    forking = asyncio.ensure_future(forks.fork(world.deps, world.account.id, source.id, count=3))
    await until(lambda: world.provider.calls["create"] == 4)
    first, *_ = [s for s in await world.store.list_sandboxes() if s.state is State.CREATING]
    await sandboxes.destroy(world.deps, world.account.id, first.id)
    world.provider.let_go("create")
    made = await forking
    assert sum(isinstance(each, Sandbox) for each in made) == 2
    assert sum(isinstance(each, Conflict) for each in made) == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("state", ["stopped", "stopping", "failed", "lost"])
async def test_a_sandbox_that_does_not_run_can_be_forked(world: World, state: str, count: int) -> None:
    source = await with_a_file(world)
    if state == "failed":
        await world.provider.die(source.id)
        await reconcile.once(world.deps)
    else:
        world.provider.storage.down = state == "stopping"
        await stopping.stop(world.deps, world.account.id, source.id)
        world.provider.storage.down = False
    if state == "lost":
        await world.provider.lose(source.id)
    before = await world.now(source)
    made = await fork(world, source, count=count)
    assert [world.read(each, "/workspace/a") for each in made] == [b"kept"] * count
    assert await world.now(source) == before
    await until(lambda: not world.provider.trees_held)


async def test_what_cannot_be_copied_makes_no_sandbox(world: World) -> None:
    source = await with_a_file(world)
    other = await add_account(world.store, "other")
    world.provider.faults["capture"] = TooBusy("There is no room.")
    with pytest.raises(TooBusy):
        await fork(world, source, count=3)
    with pytest.raises(NotFound):
        await forks.fork(world.deps, other.id, source.id)
    for count in (0, 101):
        with pytest.raises(Invalid) as refused:
            await fork(world, source, count=count)
        assert refused.value.field == "count"
    await sandboxes.destroy(world.deps, world.account.id, source.id)
    with pytest.raises(Conflict) as gone:
        await fork(world, source)
    assert gone.value.code == "sandbox_destroyed"
    assert len(await world.store.list_sandboxes()) == 1


@pytest.mark.parametrize("count", [1, 5])
async def test_equal_requests_make_the_same_forks(world: World, count: int) -> None:
    source = await with_a_file(world)
    once = Once("k", "f")
    first, second = await asyncio.gather(*(fork(world, source, count=count, once=once) for _ in range(2)))
    again = await fork(await world.crash(), source, count=count, once=once)
    assert [each.id for each in first] == [each.id for each in second] == [each.id for each in again]
    assert len(await world.store.list_sandboxes()) == count + 1


async def test_a_client_that_leaves_gets_all_its_forks_made(world: World) -> None:
    source = await with_a_file(world)
    world.provider.hold("create")
    forking = asyncio.ensure_future(fork(world, source, count=3))
    await until(lambda: world.provider.calls["create"] > 1)
    forking.cancel()
    await asyncio.gather(forking, return_exceptions=True)
    world.provider.let_go("create")
    await until(lambda: not world.deps.work.held and not world.deps.coming_up)
    assert {each.state for each in await world.store.list_sandboxes()} == {State.RUNNING}
    assert len(await world.store.list_sandboxes()) == 4


async def test_f14_the_startup_command_runs_in_each_fork(world: World) -> None:
    source = await with_a_file(world, startup_command="echo x > ran")
    made = await fork(world, source, count=3)
    await until(lambda: all(world.has(each, "/workspace/ran") for each in made))


async def test_an_error_of_a_copy_is_one_of_ours(world: World) -> None:
    source = await with_a_file(world)
    world.provider.create_error = TooBusy("There is no room.")
    (error,) = await forks.fork(world.deps, world.account.id, source.id)
    assert isinstance(error, SkerryError) and error.message.startswith("There is no room.")
