"""Rules about kept files: stops and resumes that a crash cut short, idleness, snapshots, trees, vaults, room."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import structlog

from skerry.control import idleness, making, resuming, snapshots, stopping
from skerry.control.deps import Deps
from skerry.control.world import Rule, World
from skerry.model.capture import Held
from skerry.model.errors import Conflict, NotFound, SkerryError
from skerry.model.ids import AccountId, SandboxId, SnapshotId, TreeId
from skerry.model.lifecycle import State
from skerry.model.sandbox import Sandbox
from skerry.model.snapshot import Snapshot, SnapshotState

# With other processes on the database: how long one of them may be at it before it counts as dead.
GRACE_S = 900.0
_RESUMED_WITHIN_S = 3600.0  # files may have to come from the object store first
_SWEEP_EVERY = timedelta(hours=1)
_SWEPT_OLDER_S = 3600.0
# What is to be free: a part of the pool, and of a small one more than that below which a node takes no work at all.
_ROOM, _LEAST_ROOM = 0.1, 512 << 20
_INTERRUPTED = "the server was interrupted. Try again."
_log = structlog.get_logger()


def _others_had_time(deps: Deps, thing: Sandbox | Snapshot, grace_s: float) -> bool:
    return deps.sole or (deps.clock.now() - thing.updated_at).total_seconds() > grace_s


def _half_resumed(deps: Deps, world: World) -> Iterable[Sandbox]:
    for sandbox in world.records.values():
        resuming_ = sandbox.state is State.RESUMING and sandbox.id not in deps.coming_up
        if resuming_ and _others_had_time(deps, sandbox, _RESUMED_WITHIN_S):
            yield sandbox


async def _take_back(deps: Deps, _world: World, sandbox: Sandbox) -> None:
    now = await deps.store.get_sandbox(sandbox.id)
    if (now.state, now.generation) != (State.RESUMING, sandbox.generation) or sandbox.id in deps.coming_up:
        return
    await making.end_compute(deps, now)
    back = await resuming.take_back(deps, now, _INTERRUPTED)
    if back.state is State.STOPPING:
        stopping.carry_on(deps, back)


def _half_stopped(deps: Deps, world: World) -> Iterable[Sandbox]:
    now = deps.clock.now()
    for sandbox in world.records.values():
        under_way = (sandbox.id, sandbox.generation) in deps.work.stopping
        if sandbox.state is not State.STOPPING or under_way or not deps.retries.due(sandbox.id, now):
            continue
        if _others_had_time(deps, sandbox, GRACE_S):
            yield sandbox


async def _carry_on(deps: Deps, _world: World, sandbox: Sandbox) -> None:
    now = await deps.store.get_sandbox(sandbox.id)
    if now.state is State.STOPPING:
        stopping.carry_on(deps, now)  # not waited for: it may take long


def _idle(_deps: Deps, world: World) -> Iterable[Sandbox]:
    return world.idle


async def _reclaim(deps: Deps, _world: World, sandbox: Sandbox) -> None:
    await idleness.reclaim(deps, sandbox.id)


def _half_taken(deps: Deps, world: World) -> Iterable[Snapshot]:
    for snapshot in world.snapshots.values():
        half = snapshot.state is SnapshotState.CREATING and snapshot.id not in deps.work.taking
        if half and _others_had_time(deps, snapshot, GRACE_S):
            yield snapshot


async def _settle(deps: Deps, _world: World, snapshot: Snapshot) -> None:
    if snapshot.id in deps.work.taking:
        return
    held = {tree.id for tree in await deps.provider.trees()}
    try:
        await snapshots.settle(deps, snapshot, held=TreeId(snapshot.id) in held)
    except (Conflict, NotFound):
        return  # it moved meanwhile


def _half_deleted(_deps: Deps, world: World) -> Iterable[Snapshot]:
    return [each for each in world.snapshots.values() if each.state is SnapshotState.DELETING]


async def _finish_delete(deps: Deps, _world: World, snapshot: Snapshot) -> None:
    await snapshots.finish_delete(deps, snapshot)


def _unstored(deps: Deps, world: World) -> Iterable[Snapshot]:
    now = deps.clock.now()
    for snapshot in world.snapshots.values():
        lacks = snapshot.state is SnapshotState.READY and snapshot.archive is None
        if lacks and deps.retries.due(snapshot.id, now) and _others_had_time(deps, snapshot, GRACE_S):
            yield snapshot


async def _store(deps: Deps, _world: World, snapshot: Snapshot) -> None:
    snapshots.store_soon(deps, snapshot)


def _unsized(deps: Deps, world: World) -> Iterable[tuple[Snapshot, int]]:
    """Where nothing is stored, the provider alone knows how large a snapshot is."""
    sizes = {tree.id: tree.size_bytes for tree in world.trees}
    for snapshot in world.snapshots.values():
        size = sizes.get(TreeId(snapshot.id))
        if snapshot.state is SnapshotState.READY and snapshot.size_bytes is None and size is not None:
            yield snapshot, size


async def _note_size(deps: Deps, _world: World, found: tuple[Snapshot, int]) -> None:
    await deps.store.move_snapshot(found[0], SnapshotState.READY, size_bytes=found[1])


def _unwanted_trees(deps: Deps, world: World) -> Iterable[Held]:
    for tree in world.trees:
        copying = tree.id.startswith("cap_") and tree.id not in deps.work.held
        nobodys = tree.id.startswith("snap_") and SnapshotId(tree.id) not in world.snapshots
        old = (deps.clock.now() - tree.created_at).total_seconds() > GRACE_S
        if (copying or nobodys) and (deps.sole or old):
            yield tree


async def _drop(deps: Deps, _world: World, tree: Held) -> None:
    await deps.provider.drop(tree.id)


def _unswept(deps: Deps, world: World) -> Iterable[AccountId]:
    now = deps.clock.now()
    for account_id in world.vaults:
        due = now - deps.work.swept.setdefault(account_id, now) >= _SWEEP_EVERY
        # An archive that is being made is on no record yet: what it shares with older ones is not to be taken for old.
        if due and not deps.work.archiving.get(account_id):
            yield account_id


async def _sweep(deps: Deps, world: World, account_id: AccountId) -> None:
    deps.work.swept[account_id] = deps.clock.now()
    keep = await deps.store.archives_wanted(account_id)
    try:
        swept = await deps.provider.sweep(world.vaults[account_id], keep, older_than_s=_SWEPT_OLDER_S)
    except SkerryError as error:
        deps.work.unswept[account_id] = error.message
        raise
    deps.work.unswept.pop(account_id, None)
    if swept.freed_objects:
        _log.info("archives that nobody wants were removed", account=account_id, bytes=swept.freed_bytes)


def _crowding(deps: Deps, world: World) -> Iterable[TreeId]:
    """With little room left: held trees that the object store has, too; those that were not used for longest first."""
    pool_bytes = world.health.pool_bytes
    wanted = max(int(pool_bytes * _ROOM), min(_LEAST_ROOM, pool_bytes // 2)) - world.health.pool_free_bytes
    held = {tree.id: tree for tree in world.trees}
    # A sandbox may be resumed by another process while its tree is dropped, and stopped with newer files.
    own = world.records.values() if deps.sole else ()
    stored = [s for s in own if s.state is State.STOPPED and s.archive is not None]
    kept = [(s.active_at or s.created_at, TreeId(s.id), s.archive) for s in stored]
    ready = [s for s in world.snapshots.values() if s.state is SnapshotState.READY and s.archive is not None]
    kept += [(s.created_at, TreeId(s.id), s.archive) for s in ready]
    for _, tree, archive in sorted((each for each in kept if each[1] in held), key=lambda each: each[:2]):
        if wanted <= 0:
            return
        wanted -= 0 if archive is None else archive.size_bytes
        yield tree


async def _make_room(deps: Deps, _world: World, tree: TreeId) -> None:
    task = deps.work.dropping.get(tree)
    if task is None:
        task = deps.work.dropping[tree] = deps.tasks.spawn(_drop_stored(deps, tree), name=f"drop {tree}")
        task.add_done_callback(lambda _: deps.work.dropping.pop(tree))
    await task


async def _drop_stored(deps: Deps, tree: TreeId) -> None:
    """A resume in this process waits for it: so nothing is dropped that was written to since it was stored."""
    if tree.startswith("sbx_"):
        sandbox = await deps.store.get_sandbox(SandboxId(tree))
        if sandbox.state is not State.STOPPED or sandbox.archive is None:
            return
    _log.info("a stored copy of files makes room", tree=tree)
    await deps.provider.drop(tree)


RULES: tuple[Rule[Any], ...] = (
    Rule("half-resumed sandboxes go back", _half_resumed, _take_back),
    Rule("half-stopped sandboxes go on", _half_stopped, _carry_on),
    Rule("idle sandboxes are reclaimed", _idle, _reclaim, routine=True),
    Rule("half-made snapshots are finished or removed", _half_taken, _settle),
    Rule("begun deletions of snapshots are finished", _half_deleted, _finish_delete),
    Rule("snapshots are stored", _unstored, _store),
    Rule("snapshots say how large they are", _unsized, _note_size, routine=True),
    Rule("copies of files that nobody wants are dropped", _unwanted_trees, _drop),
    Rule("archives that nobody wants are swept", _unswept, _sweep, routine=True),
    Rule("stored copies make room", _crowding, _make_room, routine=True),
)
