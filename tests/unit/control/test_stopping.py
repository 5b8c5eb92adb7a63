"""Stop: the compute goes at once, the files are stored before the record says so, and nothing is ever dropped."""

import asyncio

import pytest

from skerry.control import commands, reconcile, resuming, sandboxes, startup, stopping, usage
from skerry.control.commands import NewCommand
from skerry.control.deps import ARCHIVES_AT_ONCE
from skerry.control.progress import Phase
from skerry.control.sandboxes import NewSandbox
from skerry.model.command import CommandCause, CommandStatus
from skerry.model.errors import Conflict, NotFound, Refused, Unavailable
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Sandbox
from skerry.testing.store_suite import add_account

from .conftest import World, until


async def stop(world: World, sandbox: Sandbox, **how: object) -> Sandbox:
    return await stopping.stop(world.deps, world.account.id, sandbox.id, **how)  # type: ignore[arg-type]


async def test_f8_a_stopped_sandbox_has_no_compute_and_its_files_are_stored(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/a")
    world.write(sandbox, "/etc/outside")
    stopped = await stop(world, sandbox)
    assert stopped.state is State.STOPPED
    assert stopped.archive is not None and stopped.archive.size_bytes == 4
    assert not world.provider.sandboxes[sandbox.id].running
    vault = await world.store.vault(world.account.id)
    stored = world.provider.storage.archives[vault.id][stopped.archive.id].nodes
    assert {path for path, node in stored.items() if node.data is not None} == {"/workspace/a"}


async def test_a_stop_of_a_stopped_one_is_the_same_and_asks_nobody(world: World) -> None:
    sandbox = await world.made()
    first = await stop(world, sandbox)
    assert await stop(world, sandbox) == first
    assert world.provider.calls["stop"] == world.provider.calls["archive"] == 1


async def test_many_stops_at_once_store_the_files_once(world: World) -> None:
    sandbox = await world.made()
    stopped = await asyncio.gather(*(stop(world, sandbox) for _ in range(5)))
    assert {each.state for each in stopped} == {State.STOPPED}
    assert world.provider.calls["archive"] == 1


async def test_a_stop_that_takes_long_is_answered_after_its_patience_and_goes_on(world: World) -> None:
    sandbox = await world.made()
    world.provider.hold("archive")
    waiting = asyncio.ensure_future(stop(world, sandbox, wait_s=30))
    await until(lambda: world.provider.calls["archive"])
    progress = world.deps.progress[sandbox.id]
    assert (progress.phase, progress.done_bytes, progress.total_bytes) == (Phase.ARCHIVE, 0, 0)
    assert not world.provider.sandboxes[sandbox.id].running
    world.clock.advance(31)
    assert (await waiting).state is State.STOPPING
    world.provider.let_go("archive")
    await world.in_state(sandbox, State.STOPPED)
    assert world.deps.progress == {}


async def test_without_patience_the_answer_comes_at_once(world: World) -> None:
    sandbox = await world.made()
    assert (await stop(world, sandbox, wait_s=0)).state is State.STOPPING
    await world.in_state(sandbox, State.STOPPED)


async def test_a_client_that_leaves_does_not_end_the_stop(world: World) -> None:
    sandbox = await world.made()
    world.provider.hold("stop")
    stopping_ = asyncio.ensure_future(stop(world, sandbox))
    await until(lambda: world.provider.calls["stop"])
    stopping_.cancel()
    await asyncio.gather(stopping_, return_exceptions=True)
    world.provider.let_go("stop")
    await world.in_state(sandbox, State.STOPPED)


async def test_a_busy_sandbox_is_not_stopped_unless_forced_and_then_its_commands_are_killed(world: World) -> None:
    sandbox = await world.made()
    started = await commands.start(world.deps, world.account.id, sandbox.id, NewCommand(shell="echo x; sleep 60"))
    with pytest.raises(Conflict) as refused:
        await stop(world, sandbox)
    assert refused.value.code == "sandbox_busy"
    assert (await world.now(sandbox)).state is State.RUNNING
    assert (await stop(world, sandbox, force=True)).state is State.STOPPED
    result = await commands.look_up(world.deps, world.account.id, started.command.id)
    exit = result.command.exit
    assert exit is not None
    assert (result.command.status, exit.cause) == (CommandStatus.FAILED, CommandCause.SANDBOX_GONE)
    assert result.captured.stdout == b"x\n"
    await until(lambda: not world.deps.following)
    assert (await world.now(sandbox)).state is State.STOPPED


async def test_a_startup_does_not_make_a_sandbox_busy_and_ends_with_it(world: World) -> None:
    sandbox = await world.made(startup_command="sleep 1000")
    await until(lambda: world.deps.following)
    assert (await stop(world, sandbox)).state is State.STOPPED
    assert (await startup.status(world.deps, world.account.id, sandbox.id)).status == "stopped"


async def test_f18_without_a_place_for_files_nothing_is_stopped(world: World) -> None:
    sandbox = await world.made()
    with pytest.raises(Conflict) as refused:
        await stop(world.beside(archive_url="none"), sandbox)
    assert refused.value.code == "storage_disabled"
    assert (await world.now(sandbox)).state is State.RUNNING


async def test_a_sandbox_that_is_being_made_is_stopped_once_it_runs(world: World) -> None:
    world.provider.gate.clear()
    creating = asyncio.ensure_future(world.made())
    await until(lambda: world.provider.created)
    (record,) = await world.store.list_sandboxes()
    stopping_ = asyncio.ensure_future(stop(world, record))
    await asyncio.sleep(0.01)
    world.provider.gate.set()
    assert (await creating).state is State.RUNNING
    assert (await stopping_).state is State.STOPPED


async def test_what_was_never_made_or_is_destroyed_cannot_be_stopped(world: World) -> None:
    world.provider.create_error = Refused("No.")
    with pytest.raises(Refused):
        await world.made()
    world.provider.create_error = None
    (failed,) = await world.store.list_sandboxes()
    gone = await world.made()
    await sandboxes.destroy(world.deps, world.account.id, gone.id)
    for sandbox, code in ((failed, "sandbox_failed"), (gone, "sandbox_destroyed")):
        with pytest.raises(Conflict) as refused:
            await stop(world, sandbox)
        assert refused.value.code == code


async def test_f1_another_accounts_sandbox_is_not_stopped(world: World) -> None:
    sandbox, other = await world.made(), await add_account(world.store, "other")
    for call in (stopping.stop, resuming.resume):
        with pytest.raises(NotFound):
            await call(world.deps, other.id, sandbox.id)


async def test_a_failed_sandbox_can_be_stored(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/a")
    await world.provider.die(sandbox.id, Cause.OOM, tell=False)
    await reconcile.once(world.deps)
    stopped = await stop(world, sandbox)
    assert (stopped.state, stopped.cause) == (State.STOPPED, None)
    assert stopped.archive is not None and stopped.archive.size_bytes == 4


async def test_a_store_that_is_down_leaves_the_files_on_the_node_and_says_so_and_is_tried_again(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/a")
    world.provider.storage.down = True
    half = await stop(world, sandbox)
    assert half.state is State.STOPPING
    assert half.detail.startswith("The object store does not answer") and "again in 5 s" in half.detail
    assert world.provider.workspace(sandbox.id)["/workspace/a"] == b"kept"
    await reconcile.once(world.deps)
    assert world.provider.calls["archive"] == 1
    for pause_s in (30, 60, 120, 240, 300, 300):
        before = world.provider.calls["archive"]
        world.clock.advance(pause_s - 1)
        await reconcile.once(world.deps)
        assert world.provider.calls["archive"] == before
        world.clock.advance(1)
        await reconcile.once(world.deps)
        await until(lambda: world.provider.calls["archive"] == before + 1 and not world.deps.work.stopping)  # noqa: B023
    world.provider.storage.down = False
    world.clock.advance(300)
    await reconcile.once(world.deps)
    stopped = await world.in_state(sandbox, State.STOPPED)
    assert stopped.detail == "" and stopped.archive is not None


async def test_files_beyond_what_an_archive_holds_are_kept_and_the_limit_is_named(world: World) -> None:
    sandbox = await world.made()
    world.provider.faults["archive"] = Refused("The tree is deeper than 4,096 levels.")
    half = await stop(world, sandbox)
    assert (half.state, half.detail[:37]) == (State.STOPPING, "The tree is deeper than 4,096 levels.")
    assert sandbox.id in world.provider.sandboxes


async def test_a_node_that_is_away_is_told_and_the_stop_is_finished_when_it_is_back(world: World) -> None:
    sandbox = await world.made()
    world.provider.down = True
    with pytest.raises(Unavailable):
        await stop(world, sandbox)
    assert (await world.now(sandbox)).state is State.STOPPING
    world.provider.down = False
    await reconcile.once(world.deps)
    await world.in_state(sandbox, State.STOPPED)


async def test_files_that_the_node_lost_before_they_were_stored_are_told_as_lost(world: World) -> None:
    sandbox = await world.made()
    await world.provider.lose(sandbox.id)
    failed = await stop(world, sandbox)
    assert (failed.state, failed.cause) == (State.FAILED, Cause.DISK)


async def test_files_that_the_node_lost_after_a_resume_are_as_they_were_stored(world: World) -> None:
    sandbox = await world.made()
    first = await stop(world, sandbox)
    await resuming.resume(world.deps, world.account.id, sandbox.id)
    await world.provider.lose(sandbox.id)
    again = await stop(world, sandbox)
    assert (again.state, again.archive) == (State.STOPPED, first.archive)
    assert "as they were stored before" in again.detail


async def test_a_stopped_sandbox_uses_no_memory_and_its_settings_can_be_changed(world: World) -> None:
    sandbox = await world.made(memory_mb=100)
    await stop(world, sandbox)
    used = await usage.get(world.deps, world.account.id)
    assert (used.memory_mb, used.cpu_millis, used.sandboxes["stopped"]) == (0, 0, 1)
    assert used.disk_mb == sandbox.limits.disk_mb
    changed = await sandboxes.set_env(world.deps, world.account.id, sandbox.id, {"A": "b"})
    assert dict(changed.env) == {"A": "b"}
    renamed = await sandboxes.relabel(world.deps, world.account.id, sandbox.id, name="new", metadata=None)
    assert (renamed.name, renamed.state) == ("new", State.STOPPED)


@pytest.mark.parametrize("verb", ["stop", "archive"])
async def test_f11_a_sandbox_can_be_destroyed_while_it_is_stopped(world: World, verb: str) -> None:
    sandbox = await world.made()
    world.provider.hold(verb)
    stopping_ = asyncio.ensure_future(stop(world, sandbox))
    await until(lambda: world.provider.calls[verb])
    for _ in range(2):
        await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    world.provider.let_go(verb)
    assert (await stopping_).state is State.DESTROYED
    await reconcile.once(world.deps)
    assert (world.provider.sandboxes, world.provider.trees_held) == ({}, {})
    assert (await world.now(sandbox)).archive is None


async def test_f11_destroy_works_twice_in_every_state(world: World) -> None:
    async def failed() -> Sandbox:
        sandbox = await world.made()
        await world.provider.die(sandbox.id)
        await reconcile.once(world.deps)
        return sandbox

    async def half_stopped() -> Sandbox:
        sandbox = await world.made()
        world.provider.storage.down = True
        await stop(world, sandbox)
        world.provider.storage.down = False
        return sandbox

    async def stopped() -> Sandbox:
        return await stop(world, await world.made())

    for make, state in ((failed, State.FAILED), (half_stopped, State.STOPPING), (stopped, State.STOPPED)):
        sandbox = await make()
        assert (await world.now(sandbox)).state is state
        for _ in range(2):
            await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
        assert (await world.now(sandbox)).state is State.DESTROYED
        with pytest.raises(Conflict) as refused:
            await resuming.resume(world.deps, world.account.id, sandbox.id)
        assert refused.value.code == "sandbox_destroyed"
    assert (world.provider.sandboxes, world.provider.trees_held) == ({}, {})


async def test_one_accounts_stops_do_not_hold_up_anothers(world: World) -> None:
    other = await add_account(world.store, "two")
    world.provider.hold("archive")
    many = [await world.made() for _ in range(ARCHIVES_AT_ONCE + 2)]
    for each in many:
        await stopping.stop(world.deps, world.account.id, each.id, wait_s=0)
    await until(lambda: world.provider.calls["archive"] == ARCHIVES_AT_ONCE)
    theirs = await sandboxes.create(world.deps, other.id, NewSandbox())
    await stopping.stop(world.deps, other.id, theirs.id, wait_s=0)
    await until(lambda: world.provider.calls["archive"] == ARCHIVES_AT_ONCE + 1)
    world.provider.let_go("archive")
    for each in (*many, theirs):
        await world.in_state(each, State.STOPPED)
