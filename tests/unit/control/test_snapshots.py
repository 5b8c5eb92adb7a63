"""Snapshots: of one instant, with the configuration; they outlive their source and what is made from them."""

import asyncio

import pytest

from skerry.control import reconcile, sandboxes, snapshots, stopping
from skerry.model.errors import Conflict, Invalid, NotFound, TooBusy, Unavailable
from skerry.model.ids import SnapshotId
from skerry.model.lifecycle import State
from skerry.model.request import Once
from skerry.model.sandbox import NetworkMode, Sandbox
from skerry.model.snapshot import Snapshot, SnapshotState
from skerry.testing.store_suite import add_account

from .conftest import World, until


async def taken(world: World, sandbox: Sandbox, **how: object) -> Snapshot:
    return await snapshots.create(world.deps, world.account.id, sandbox.id, **how)  # type: ignore[arg-type]


async def stored(world: World, snapshot: Snapshot) -> Snapshot:
    await until(lambda: snapshot.id not in world.deps.work.storing)
    return await world.store.get_snapshot(snapshot.id)


async def with_a_file(world: World, **wanted: object) -> Sandbox:
    sandbox = await world.made(**wanted)
    world.write(sandbox, "/workspace/a")
    return sandbox


async def test_f26_a_snapshot_has_the_files_of_its_instant_and_the_configuration(world: World) -> None:
    source = await with_a_file(
        world, template="node", memory_mb=77, timeout_s=9, network_mode=NetworkMode.NONE, env={"A": "b"}
    )
    snapshot = await taken(world, source, name="one")
    world.write(source, "/workspace/a", b"changed")
    assert (snapshot.state, snapshot.name, snapshot.source_sandbox_id) == (SnapshotState.READY, "one", source.id)
    assert (snapshot.template, snapshot.limits, dict(snapshot.env)) == ("node", source.limits, {"A": "b"})
    made = await world.made(template="blank", snapshot_id=snapshot.id, name="two")
    assert (made.template, made.limits, made.timeout_s, made.network_mode) == (
        "node",
        source.limits,
        9,
        NetworkMode.NONE,
    )
    assert (dict(made.env), made.name, made.source) == ({"A": "b"}, "two", snapshot.id)
    assert world.read(made, "/workspace/a") == b"kept"
    assert world.read(source, "/workspace/a") == b"changed"
    assert (await world.now(source)).generation == 1


async def test_what_is_given_beside_a_snapshot_counts(world: World) -> None:
    snapshot = await taken(world, await with_a_file(world, env={"A": "b"}, startup_command="up"))
    made = await world.made(snapshot_id=snapshot.id, env={"C": "d"}, memory_mb=99, startup_command="", idle_timeout_s=0)
    assert (dict(made.env), made.limits.memory_mb, made.startup_command, made.idle_timeout_s) == (
        {"C": "d"},
        99,
        None,
        0,
    )


async def test_a_snapshot_is_stored_in_the_background_and_says_its_size(world: World) -> None:
    snapshot = await taken(world, await with_a_file(world))
    kept = await stored(world, snapshot)
    assert kept.archive is not None
    assert (kept.size_bytes, kept.detail) == (4, "")


async def test_a_stopped_sandboxs_snapshot_is_its_archive_even_where_no_node_has_the_files(world: World) -> None:
    source = await with_a_file(world)
    stopped = await stopping.stop(world.deps, world.account.id, source.id)
    first = await taken(world, source)
    await world.provider.lose(source.id)
    second = await taken(world, source)
    assert first.archive == second.archive == stopped.archive
    assert world.provider.calls["archive"] == 1
    await sandboxes.destroy(world.deps, world.account.id, source.id)
    assert await world.store.archives_wanted(world.account.id) == {stopped.archive.id if stopped.archive else None}
    made = await world.made(snapshot_id=second.id)
    assert world.read(made, "/workspace/a") == b"kept"


async def test_a_snapshot_outlives_its_source_and_many_are_made_from_it(world: World) -> None:
    source = await with_a_file(world)
    snapshot = await taken(world, source)
    await sandboxes.destroy(world.deps, world.account.id, source.id)
    made = await asyncio.gather(*(world.made(snapshot_id=snapshot.id) for _ in range(5)))
    assert {world.read(each, "/workspace/a") for each in made} == {b"kept"}


async def test_a_deleted_snapshot_is_gone_and_what_was_made_from_it_lives_on(world: World) -> None:
    snapshot = await taken(world, await with_a_file(world))
    made = await world.made(snapshot_id=snapshot.id)
    await snapshots.delete(world.deps, world.account.id, snapshot.id)
    assert world.read(made, "/workspace/a") == b"kept"
    assert world.provider.trees_held == {}
    for call in (snapshots.get, snapshots.delete):
        with pytest.raises(NotFound):
            await call(world.deps, world.account.id, snapshot.id)
    with pytest.raises(Invalid) as refused:
        await world.made(snapshot_id=snapshot.id)
    assert refused.value.field == "snapshot_id"


async def test_a_snapshot_can_be_deleted_while_it_is_stored(world: World) -> None:
    world.provider.hold("archive")
    snapshot = await taken(world, await with_a_file(world))
    await until(lambda: world.provider.calls["archive"])
    await snapshots.delete(world.deps, world.account.id, snapshot.id)
    world.provider.let_go("archive")
    await until(lambda: not world.deps.work.storing)
    assert list(await world.store.list_snapshots()) == []
    assert world.provider.trees_held == {}


async def test_a_snapshot_that_is_deleted_while_it_is_taken_leaves_nothing(world: World) -> None:
    source = await with_a_file(world)
    world.provider.hold("capture")
    taking = asyncio.ensure_future(taken(world, source))
    await until(lambda: world.provider.calls["capture"])
    (half,) = await world.store.list_snapshots()
    await snapshots.delete(world.deps, world.account.id, half.id)
    world.provider.let_go("capture")
    with pytest.raises((Conflict, NotFound)):
        await taking
    assert world.provider.trees_held == {}
    assert list(await world.store.list_snapshots()) == []


async def test_a_snapshot_that_cannot_be_taken_leaves_nothing(world: World) -> None:
    source = await with_a_file(world)
    world.provider.faults["capture"] = TooBusy("There is no room.")
    with pytest.raises(TooBusy):
        await taken(world, source)
    assert list(await world.store.list_snapshots()) == []
    assert not world.deps.work.taking


async def test_a_store_that_is_down_is_told_and_tried_again(world: World) -> None:
    world.provider.storage.down = True
    snapshot = await stored(world, await taken(world, await with_a_file(world)))
    assert (snapshot.state, snapshot.archive) == (SnapshotState.READY, None)
    assert "again in 5 s" in snapshot.detail
    assert world.read(await world.made(snapshot_id=snapshot.id), "/workspace/a") == b"kept"
    world.provider.storage.down = False
    await reconcile.once(world.deps)
    assert world.provider.calls["archive"] == 1
    world.clock.advance(30)
    await reconcile.once(world.deps)
    kept = await stored(world, snapshot)
    assert kept.archive is not None and kept.detail == ""


async def test_where_nothing_is_stored_a_snapshot_is_on_its_node_and_says_its_size(world: World) -> None:
    other = world.beside(archive_url="none")
    snapshot = await taken(other, await with_a_file(other))
    await reconcile.once(other.deps)
    kept = await world.store.get_snapshot(snapshot.id)
    assert (kept.archive, kept.size_bytes, world.provider.calls["archive"]) == (None, 4, 0)


async def test_equal_requests_take_one_snapshot(world: World) -> None:
    source = await with_a_file(world)
    once = Once("k", "f")
    first, second = await asyncio.gather(taken(world, source, once=once), taken(world, source, once=once))
    again = await taken(await world.crash(), source, once=once)
    assert first.id == second.id == again.id
    assert len(await world.store.list_snapshots()) == 1


async def test_a_request_whose_snapshot_came_to_nothing_takes_another(world: World) -> None:
    source = await with_a_file(world)
    world.provider.faults["capture"] = TooBusy("There is no room.")
    with pytest.raises(TooBusy):
        await taken(world, source, once=Once("k", "f"))
    del world.provider.faults["capture"]
    assert (await taken(world, source, once=Once("k", "f"))).state is SnapshotState.READY


async def test_f1_another_accounts_snapshot_is_not_found(world: World) -> None:
    other = await add_account(world.store, "other")
    snapshot = await taken(world, await with_a_file(world))
    for call in (snapshots.get, snapshots.delete):
        with pytest.raises(NotFound):
            await call(world.deps, other.id, snapshot.id)
    with pytest.raises(NotFound):
        await snapshots.create(world.deps, other.id, snapshot.source_sandbox_id)
    page, _ = await snapshots.list_page(world.deps, other.id, limit=10, before=None)
    assert list(page) == []
    with pytest.raises(Invalid) as refused:
        await sandboxes.create(world.deps, other.id, sandboxes.NewSandbox(snapshot_id=snapshot.id))
    assert refused.value.field == "snapshot_id"


async def test_snapshots_are_listed_page_by_page(world: World) -> None:
    source, other = await with_a_file(world), await world.made()
    made = [await taken(world, source, name=str(number)) for number in range(3)]
    await taken(world, other)
    ids = [snapshot.id for snapshot in reversed(made)]

    async def page(**how: object) -> tuple[list[SnapshotId], SnapshotId | None]:
        found, more = await snapshots.list_page(
            world.deps,
            world.account.id,
            source_sandbox_id=source.id,
            **how,  # type: ignore[arg-type]
        )
        return [snapshot.id for snapshot in found], more

    assert await page(limit=2, before=None) == (ids[:2], ids[1])
    assert await page(limit=2, before=ids[1]) == (ids[2:], None)
    assert await page(limit=2, before=None, name="1") == ([ids[1]], None)
    with pytest.raises(Invalid) as refused:
        await page(limit=2, before="snap_nobody")
    assert refused.value.field == "before"


async def test_files_larger_than_the_new_sandboxs_disk_are_refused_by_name(world: World) -> None:
    source = await with_a_file(world)
    world.write(source, "/workspace/large", bytes(3 << 20))
    snapshot = await stored(world, await taken(world, source))
    with pytest.raises(Invalid) as refused:
        await world.made(snapshot_id=snapshot.id, disk_mb=2)
    assert refused.value.field == "disk_mb"


# -- restore_from ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.RUNNING, State.STOPPED, State.FAILED])
@pytest.mark.parametrize("lost", [False, True], ids=["on the node", "from the store"])
async def test_f23_a_new_sandbox_begins_with_the_files_of_another(world: World, state: State, lost: bool) -> None:
    source = await with_a_file(world, template="node", env={"A": "b"})
    if state is State.STOPPED:
        await stopping.stop(world.deps, world.account.id, source.id)
    if state is State.FAILED:
        await world.provider.die(source.id)
        await reconcile.once(world.deps)
    if lost and state is State.STOPPED:
        await world.provider.lose(source.id)
    made = await world.made(restore_from=source.id)
    assert (world.read(made, "/workspace/a"), made.template, dict(made.env)) == (b"kept", "python", {})
    assert (await world.now(source)).state is state
    await until(lambda: not world.provider.trees_held)


async def test_f23_restore_from_and_a_snapshot_exclude_each_other(world: World) -> None:
    source = await with_a_file(world)
    snapshot = await taken(world, source)
    for wanted, field in (
        ({"restore_from": source.id, "snapshot_id": snapshot.id}, "restore_from"),
        ({"restore_from": "sbx_nobody"}, "restore_from"),
        ({"snapshot_id": "snap_nobody"}, "snapshot_id"),
    ):
        with pytest.raises(Invalid) as refused:
            await world.made(**wanted)
        assert refused.value.field == field


async def test_files_that_are_lost_make_no_sandbox(world: World) -> None:
    source = await with_a_file(world)
    await world.provider.lose(source.id)
    with pytest.raises(Conflict) as refused:
        await world.made(restore_from=source.id)
    assert refused.value.code == "files_lost"
    newest, _ = await world.store.list_sandboxes()
    assert newest.state is State.FAILED


async def test_f14_f17_a_startup_file_among_the_files_runs_on_a_create_from_them(world: World) -> None:
    source = await with_a_file(world)
    world.write(source, "/workspace/flax.startup", b"echo x > ran\n")
    snapshot = await taken(world, source)
    for wanted in ({"snapshot_id": snapshot.id}, {"restore_from": source.id}):
        made = await world.made(**wanted)
        await until(lambda: world.has(made, "/workspace/ran"))  # noqa: B023
    await reconcile.once(world.deps)
    assert not world.has(source, "/workspace/ran")


async def test_a_node_that_is_away_is_told_when_a_snapshot_is_deleted(world: World) -> None:
    snapshot = await stored(world, await taken(world, await with_a_file(world)))
    world.provider.down = True
    with pytest.raises(Unavailable):
        await snapshots.delete(world.deps, world.account.id, snapshot.id)
    world.provider.down = False
    await reconcile.once(world.deps)
    assert (list(await world.store.list_snapshots()), world.provider.trees_held) == ([], {})


async def test_an_account_that_has_all_the_snapshots_it_may_have_is_told_what_to_do(world: World) -> None:
    few = world.beside(max_snapshots_per_account=1)
    box = await few.made()
    kept = await snapshots.create(few.deps, few.account.id, box.id)
    with pytest.raises(Conflict) as caught:
        await snapshots.create(few.deps, few.account.id, box.id)
    assert caught.value.code == "too_many_snapshots" and "Delete some" in caught.value.message
    assert not few.deps.work.taking and few.provider.calls["capture"] == 1
    await snapshots.delete(few.deps, few.account.id, kept.id)
    await snapshots.create(few.deps, few.account.id, box.id)
    await few.deps.tasks.close()
