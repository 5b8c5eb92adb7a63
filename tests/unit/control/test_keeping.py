"""What the reconciler does about kept files: finishes, takes back, drops, sweeps; leaves alone what is wanted."""

import asyncio
from dataclasses import replace

import pytest

from skerry.control import reconcile, resuming, sandboxes, snapshots, stopping
from skerry.model.ids import TreeId, new_capture_id, new_snapshot_id
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Sandbox
from skerry.model.snapshot import SnapshotState
from skerry.testing.store_suite import add_account, snapshot_of

from .conftest import World, until

GIB = 1 << 30


async def stopped(world: World, **wanted: object) -> Sandbox:
    sandbox = await world.made(**wanted)
    world.write(sandbox, "/workspace/a")
    return await stopping.stop(world.deps, world.account.id, sandbox.id)


async def resume(world: World, sandbox: Sandbox) -> Sandbox:
    return await resuming.resume(world.deps, world.account.id, sandbox.id)


async def test_x2_a_stop_that_a_crash_cut_short_goes_on(world: World) -> None:
    sandbox = await world.made()
    await world.store.transition(sandbox, Event.STOP)
    await reconcile.once((await world.crash()).deps)
    assert (await world.in_state(sandbox, State.STOPPED)).archive is not None


async def test_x2_a_resume_that_a_crash_cut_short_goes_back_with_what_was_written(world: World) -> None:
    sandbox = await stopped(world)
    half = await world.store.transition(sandbox, Event.RESUME)
    await world.provider.create(sandboxes.spec_of(half), TreeId(half.id))
    world.write(half, "/workspace/b")
    after = await world.crash()
    await reconcile.once(after.deps)
    again = await world.in_state(sandbox, State.STOPPED)
    assert (again.generation, again.archive and again.archive.size_bytes) == (2, 8)
    assert not world.provider.sandboxes[sandbox.id].running


async def test_beside_other_processes_what_is_half_done_is_given_its_time(world: World) -> None:
    other = replace(world.beside().deps, sole=False)
    half_stopped = await world.store.transition(await world.made(), Event.STOP)
    half_resumed = await world.store.transition(await stopped(world), Event.RESUME)
    half_taken = snapshot_of(half_stopped)
    await world.store.add_snapshot(replace(half_taken, updated_at=world.clock.now()))
    await reconcile.once(other)
    assert (await world.now(half_stopped)).state is State.STOPPING
    assert (await world.now(half_resumed)).state is State.RESUMING
    assert (await world.store.get_snapshot(half_taken.id)).state is SnapshotState.CREATING
    world.clock.advance(3601)
    await reconcile.once(other)
    await world.in_state(half_stopped, State.STOPPED)
    await world.in_state(half_resumed, State.STOPPED)
    assert list(await world.store.list_snapshots()) == []
    await other.tasks.close()


async def test_stopped_sandboxes_and_what_they_hold_are_left_alone(world: World) -> None:
    sandbox = await stopped(world)
    snapshot = await snapshots.create(world.deps, world.account.id, sandbox.id)
    for _ in range(3):
        world.clock.advance(100_000)
        await reconcile.once(world.deps)
    assert replace(await world.now(sandbox), active_at=None) == sandbox
    assert {tree.id for tree in await world.provider.trees()} == {sandbox.id, snapshot.id}
    assert world.provider.destroyed == 0


async def test_a_stopped_sandbox_that_no_record_wants_is_destroyed_with_its_files(world: World) -> None:
    stray = await stopped(world)
    await world.store.transition(await world.store.transition(stray, Event.DESTROY), Event.GONE)
    await reconcile.once(world.deps)
    assert (world.provider.sandboxes, world.provider.trees_held) == ({}, {})


async def test_a_node_that_stopped_its_sandboxes_stopped_them_in_good_order(world: World) -> None:
    sandbox = await world.made()
    await world.provider.stop(sandbox.id, sandbox.generation)
    await reconcile.once(world.deps)
    assert (await world.in_state(sandbox, State.STOPPED)).cause is Cause.HOST_RESTART


async def test_a_resume_between_the_look_and_the_verdict_is_no_death(world: World) -> None:
    sandbox = await world.made()
    seen = await reconcile.look(world.deps)
    await world.provider.stop(sandbox.id, 1)
    late = replace(seen, observed={each.id: each for each in await world.provider.list()})
    await stopping.stop(world.deps, world.account.id, sandbox.id)
    await resume(world, sandbox)
    (dead,) = [rule for rule in reconcile.RULES if rule.name == "dead sandboxes fail"]
    for found in dead.find(world.deps, late):
        await dead.fix(world.deps, late, found)
    assert (await world.now(sandbox)).state is State.RUNNING


async def test_trees_that_nobody_wants_are_dropped_and_those_of_copies_that_are_made_are_not(world: World) -> None:
    sandbox = await world.made()
    copy, nobodys, held = new_capture_id(), TreeId(new_snapshot_id()), new_capture_id()
    for tree in (copy, nobodys, held):
        await world.provider.capture(sandbox.id, tree)
    world.deps.work.held.add(held)
    await reconcile.once(world.deps)
    assert set(world.provider.trees_held) == {held}


async def test_beside_other_processes_a_young_tree_may_be_somebodys(world: World) -> None:
    deps = replace(world.deps, sole=False)
    sandbox = await world.made()
    await world.provider.capture(sandbox.id, new_capture_id())
    await reconcile.once(deps)
    assert len(world.provider.trees_held) == 1
    world.clock.advance(901)
    await reconcile.once(deps)
    assert world.provider.trees_held == {}


@pytest.mark.parametrize("held", [True, False])
async def test_x2_a_snapshot_that_a_crash_cut_short_is_finished_or_removed(world: World, held: bool) -> None:
    sandbox = await world.made()
    half = snapshot_of(sandbox)
    await world.store.add_snapshot(half)
    if held:
        await world.provider.capture(sandbox.id, TreeId(half.id))
    after = await world.crash()
    await reconcile.once(after.deps)
    await until(lambda: not after.deps.work.storing)
    found = list(await world.store.list_snapshots())
    assert [(each.state, each.archive is not None) for each in found] == [(SnapshotState.READY, True)] * held


async def test_x2_a_deletion_that_a_crash_cut_short_is_finished(world: World) -> None:
    snapshot = await snapshots.create(world.deps, world.account.id, (await world.made()).id)
    await until(lambda: not world.deps.work.storing)
    await world.store.move_snapshot(await world.store.get_snapshot(snapshot.id), SnapshotState.DELETING)
    await reconcile.once((await world.crash()).deps)
    assert (list(await world.store.list_snapshots()), world.provider.trees_held) == ([], {})


async def test_archives_that_nobody_wants_are_swept_every_hour_and_young_ones_are_not(world: World) -> None:
    keeper, goner = await stopped(world, idle_timeout_s=0), await stopped(world, idle_timeout_s=0)
    await add_account(world.store, "without a vault")
    await sandboxes.destroy(world.deps, world.account.id, goner.id)
    held = world.provider.storage.archives[(await world.store.vault(world.account.id)).id]
    await reconcile.once(world.deps)
    world.clock.advance(3599)
    await reconcile.once(world.deps)
    assert (world.provider.calls["sweep"], len(held)) == (0, 2)
    world.clock.advance(1)
    await reconcile.once(world.deps)
    assert (world.provider.calls["sweep"], set(held)) == (1, {keeper.archive.id if keeper.archive else None})
    assert len(await world.store.list_vaults()) == 1


async def test_a_vault_is_not_swept_while_an_archive_is_made_into_it(world: World) -> None:
    await stopped(world)
    await reconcile.once(world.deps)
    world.provider.hold("archive")
    sandbox = await world.made(idle_timeout_s=0)
    stopping_ = asyncio.ensure_future(stopping.stop(world.deps, world.account.id, sandbox.id, wait_s=10_000))
    await until(lambda: world.provider.calls["archive"] == 2)
    world.clock.advance(3601)
    await reconcile.once(world.deps)
    assert world.provider.calls["sweep"] == 0
    world.provider.let_go("archive")
    await stopping_
    await reconcile.once(world.deps)
    assert world.provider.calls["sweep"] == 1


async def test_little_room_drops_stored_files_from_the_node_longest_unused_first(world: World) -> None:
    old = await stopped(world)
    await reconcile.once(world.deps)
    world.clock.advance(60)
    new = await stopped(world)
    running, unstored = await world.made(idle_timeout_s=0), await world.made(idle_timeout_s=0)
    world.provider.storage.down = True
    await stopping.stop(world.deps, world.account.id, unstored.id)
    await reconcile.once(world.deps)
    assert set(world.provider.sandboxes) == {old.id, new.id, running.id, unstored.id}
    world.provider.pool = (10 * GIB, GIB - 1)
    await reconcile.once(world.deps)
    assert set(world.provider.sandboxes) == {new.id, running.id, unstored.id}
    world.provider.pool = (10 * GIB, 0)
    await reconcile.once(world.deps)
    assert set(world.provider.sandboxes) == {running.id, unstored.id}
    world.provider.storage.down = False
    for sandbox in (old, new):
        await resume(world, sandbox)
        assert world.read(sandbox, "/workspace/a") == b"kept"


async def test_a_small_pool_makes_room_before_its_node_refuses_work(world: World) -> None:
    sandbox = await stopped(world)
    world.provider.pool = (GIB, GIB * 6 // 10)
    await reconcile.once(world.deps)
    assert set(world.provider.sandboxes) == {sandbox.id}
    world.provider.pool = (GIB, 300 << 20)
    await reconcile.once(world.deps)
    assert set(world.provider.sandboxes) == set()


async def test_a_stored_snapshot_makes_room_and_is_fetched_when_it_is_needed(world: World) -> None:
    source = await world.made(idle_timeout_s=0)
    world.write(source, "/workspace/a")
    snapshot = await snapshots.create(world.deps, world.account.id, source.id)
    await until(lambda: not world.deps.work.storing)
    world.provider.pool = (10 * GIB, 0)
    await reconcile.once(world.deps)
    assert world.provider.trees_held == {}
    world.provider.pool = (10 * GIB, 5 * GIB)
    for _ in range(2):
        assert world.read(await world.made(snapshot_id=snapshot.id), "/workspace/a") == b"kept"
    assert (set(world.provider.trees_held), world.provider.calls["fetch"]) == ({TreeId(snapshot.id)}, 1)


async def test_a_resume_waits_for_its_files_to_be_dropped_and_then_fetches_them(world: World) -> None:
    sandbox = await stopped(world)
    world.provider.pool = (10 * GIB, 0)
    world.provider.hold("drop")
    passing = asyncio.ensure_future(reconcile.once(world.deps))
    await until(lambda: world.provider.calls["drop"])
    resuming_ = asyncio.ensure_future(resume(world, sandbox))
    await asyncio.sleep(0.01)
    assert world.provider.created == 1
    world.provider.let_go("drop")
    await passing
    assert (await resuming_).state is State.RUNNING
    assert world.read(sandbox, "/workspace/a") == b"kept"
