"""What is held and on no record, as control sees it: what records and provider disagree about, and the vaults'."""

from collections.abc import Mapping
from dataclasses import replace

from skerry.control import forks, leaks, reconcile, resuming, sandboxes, snapshots, stopping
from skerry.model.errors import Unavailable
from skerry.model.ids import TreeId, new_capture_id, new_sandbox_id
from skerry.model.leak import Leak, LeakKind
from skerry.model.lifecycle import Event
from skerry.model.snapshot import SnapshotState

from .conftest import World, until


async def found(world: World) -> Mapping[tuple[LeakKind, str], Leak]:
    told = await leaks.find(world.deps)
    assert told.unchecked == ()
    return {(one.kind, one.name): one for one in told.found}


async def test_x3_nothing_leaks_after_all_that_sandboxes_go_through(world: World) -> None:
    box = await world.made()
    world.write(box, "/workspace/a")
    await stopping.stop(world.deps, world.account.id, box.id)
    await resuming.resume(world.deps, world.account.id, box.id)
    copies = await forks.fork(world.deps, world.account.id, box.id, count=2)
    snapshot = await snapshots.create(world.deps, world.account.id, box.id)
    await until(lambda: not world.deps.work.storing and not world.deps.work.held)
    assert all(one.waiting for one in (await found(world)).values())
    await snapshots.delete(world.deps, world.account.id, snapshot.id)
    for one in (box, *copies):
        await sandboxes.destroy(world.deps, world.account.id, one.id)  # type: ignore[union-attr]
    told = await found(world)
    assert all(one.kind is LeakKind.ARCHIVES and one.waiting for one in told.values()) and told
    await reconcile.once(world.deps)
    world.clock.advance(3601)
    await reconcile.once(world.deps)
    assert await found(world) == {}


async def test_x3_what_the_node_names_is_told_on(world: World) -> None:
    leak = Leak(LeakKind.NETNS, "/run/netns/x", "it goes")
    world.provider.leaked.append(leak)
    assert await found(world) == {(LeakKind.NETNS, "/run/netns/x"): leak}


async def test_x3_a_sandbox_that_no_record_wants_is_a_leak(world: World) -> None:
    stray = replace(sandboxes.spec_of(await world.made()), id=new_sandbox_id())
    await world.provider.create(stray)
    assert list(await found(world)) == [(LeakKind.SANDBOX, stray.id)]
    await reconcile.once(world.deps)
    assert await found(world) == {}


async def test_x3_a_record_whose_sandbox_is_nowhere_is_told(world: World) -> None:
    box = await world.made()
    await world.provider.destroy(box.id)
    assert "becomes `failed`" in (await found(world))[LeakKind.SANDBOX, box.id].fate


async def test_x3_a_tree_that_nobody_wants_is_a_leak_and_one_in_use_is_none(world: World) -> None:
    box = await world.made()
    stray, held = new_capture_id(), new_capture_id()
    for tree in (stray, held):
        await world.provider.capture(box.id, tree)
    world.deps.work.held.add(held)
    assert list(await found(world)) == [(LeakKind.TREE, stray)]


async def test_a_snapshot_whose_files_are_nowhere_is_told(world: World) -> None:
    box = await world.made()
    world.provider.storage.down = True
    snapshot = await snapshots.create(world.deps, world.account.id, box.id)
    await until(lambda: not world.deps.work.storing)
    world.provider.storage.down = False
    await world.provider.drop(TreeId(snapshot.id))
    assert (await world.store.get_snapshot(snapshot.id)).state is SnapshotState.READY
    assert (LeakKind.SNAPSHOT, snapshot.id) in await found(world)


async def test_archives_that_nobody_wants_are_a_leak_once_sweeping_fails(world: World) -> None:
    box = await world.made()
    world.write(box, "/workspace/a", b"12345")
    await stopping.stop(world.deps, world.account.id, box.id)
    await sandboxes.destroy(world.deps, world.account.id, box.id)
    ((_, waiting),) = (await found(world)).items()
    assert (waiting.waiting, waiting.size_bytes) == (True, 5)
    world.provider.faults["sweep"] = Unavailable("no disk")
    await reconcile.once(world.deps)
    world.clock.advance(3601)
    await reconcile.once(world.deps)
    del world.provider.faults["sweep"]
    ((_, leak),) = (await found(world)).items()
    assert not leak.waiting and "no disk" in leak.fate


async def test_what_cannot_be_looked_at_is_said(world: World) -> None:
    box = await world.made()
    await stopping.stop(world.deps, world.account.id, box.id)
    world.provider.storage.down = True
    told = await leaks.find(world.deps)
    assert (told.found, len(told.unchecked)) == ((), 1)
    assert "connection refused" in told.unchecked[0]


async def test_what_is_being_stopped_or_made_is_no_leak(world: World) -> None:
    box = await world.made()
    await world.store.transition(box, Event.STOP)
    assert await found(world) == {}
