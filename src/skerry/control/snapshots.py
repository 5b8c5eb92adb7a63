"""Snapshots: a sandbox's files and configuration as they were at one instant, which outlive it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from skerry.control import archives, placing, records, repeats
from skerry.control.deps import Deps
from skerry.model.capture import Archive
from skerry.model.errors import Conflict, DeadlineExceeded, Invalid, NotFound, SkerryError, Unavailable
from skerry.model.ids import AccountId, SandboxId, SnapshotId, TreeId, is_id, new_snapshot_id
from skerry.model.request import Once
from skerry.model.sandbox import Sandbox
from skerry.model.snapshot import Snapshot, SnapshotState

NAME_LENGTH = 200
_DEADLINE_S = 60.0
_PATIENCE_S = 90.0
_LOOK_AGAIN_S = 0.05
_LOST = "Its node does not hold its files any more, and they were not stored before."
_THERE = (SnapshotState.CREATING, SnapshotState.READY)


async def create(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, name: str | None = None, once: Once | None = None
) -> Snapshot:
    """Take a snapshot and return it `ready`. What runs is not disturbed. It is stored in the background.

    Raises:
        NotFound: As `sandboxes.get`.
        Invalid: The name is longer than NAME_LENGTH.
        Conflict: `sandbox_<state>`: it is destroyed, or could not be made. `files_lost`: of its files nothing is left.
            `too_many_snapshots`. The key of `once` is another request's.
        TooBusy, Unavailable, DeadlineExceeded: Nothing was made.
    """
    if name is not None and len(name) > NAME_LENGTH:
        raise Invalid(f"'name' is longer than {NAME_LENGTH} characters.", field="name")
    if once is None:
        made = await _create(deps, account_id, sandbox_id, name, None)
        assert made is not None
        return made
    attempt = partial(_create_once, deps, account_id, sandbox_id, name, once)
    return await repeats.shared(deps, account_id, once, attempt)


async def get(deps: Deps, account_id: AccountId, snapshot_id: str) -> Snapshot:
    """Raises NotFound when there is none, it is another account's, or it is being deleted."""
    if is_id(snapshot_id, "snap"):
        snapshot = await deps.store.get_snapshot(SnapshotId(snapshot_id))
        if snapshot.account_id == account_id and snapshot.state in _THERE:
            return snapshot
    raise NotFound(f"No snapshot '{snapshot_id[:64]}'.")


async def get_ready(deps: Deps, account_id: AccountId, snapshot_id: str) -> Snapshot:
    """One that sandboxes can be made from; one that is being taken is waited for.

    Raises:
        NotFound: As for `get`.
        Unavailable: It takes long.
    """
    patience = deps.clock.now() + timedelta(seconds=_PATIENCE_S)
    while True:
        snapshot = await get(deps, account_id, snapshot_id)
        if snapshot.state is SnapshotState.READY:
            return snapshot
        now = deps.clock.now()
        if now > patience:
            raise Unavailable(f"Snapshot '{snapshot.id}' is still being taken. Ask again later.")
        await deps.clock.sleep_until(now + timedelta(seconds=_LOOK_AGAIN_S))


async def list_page(
    deps: Deps,
    account_id: AccountId,
    *,
    source_sandbox_id: str | None = None,
    name: str | None = None,
    limit: int,
    before: str | None,
) -> tuple[Sequence[Snapshot], SnapshotId | None]:
    """One page, newest first, and the `before` of the next one. Those that are being deleted are left out.

    Raises:
        Invalid: `before` is no snapshot of this account.
    """
    if before is not None:
        try:
            await get(deps, account_id, before)
        except NotFound as error:
            raise Invalid(f"'{before[:64]}' is no snapshot of yours to page from.", field="before") from error
    found = await deps.store.list_snapshots(
        account_id=account_id,
        states=_THERE,
        source=None if source_sandbox_id is None else SandboxId(source_sandbox_id),
        name=name,
        limit=limit + 1,
        before=None if before is None else SnapshotId(before),
    )
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


async def delete(deps: Deps, account_id: AccountId, snapshot_id: str) -> None:
    """Delete a snapshot. Sandboxes that were made from it live on. Unknown or deleted already: NotFound.

    Raises:
        NotFound: As for `get`.
        Unavailable: It is on record, and is finished as soon as the node answers.
    """
    while True:
        snapshot = await get(deps, account_id, snapshot_id)
        try:
            snapshot = await deps.store.move_snapshot(snapshot, SnapshotState.DELETING)
        except Conflict:
            continue  # it became ready under us, or somebody else deletes it
        await asyncio.shield(deps.tasks.spawn(finish_delete(deps, snapshot), name=f"delete {snapshot.id}"))
        return


async def finish_delete(deps: Deps, snapshot: Snapshot) -> None:
    """What `delete` does once the intent is on record; the reconciler calls it for what a crash left."""
    storing = deps.work.storing.get(snapshot.id)
    if storing is not None:
        storing.cancel()
        await asyncio.wait([storing])
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await deps.provider.drop(TreeId(snapshot.id))
    except TimeoutError as error:
        raise DeadlineExceeded(f"Deleting '{snapshot.id}' takes long. It goes on; look again later.") from error
    deps.retries.forget(snapshot.id)
    await deps.store.remove_snapshot(snapshot.id)


def store_soon(deps: Deps, snapshot: Snapshot) -> None:
    """Put a snapshot's files into the object store, in the background. Under way or stored already: nothing."""
    if not deps.config.archive_place or snapshot.archive is not None or snapshot.id in deps.work.storing:
        return
    task = deps.work.storing[snapshot.id] = deps.tasks.spawn(_store(deps, snapshot), name=f"store {snapshot.id}")
    task.add_done_callback(lambda _: deps.work.storing.pop(snapshot.id))


async def settle(deps: Deps, snapshot: Snapshot, *, held: bool) -> None:
    """Finish or undo one that a crash left half-made: its files were copied, or not at all."""
    if held:
        store_soon(deps, await deps.store.move_snapshot(snapshot, SnapshotState.READY))
    else:
        await finish_delete(deps, await deps.store.move_snapshot(snapshot, SnapshotState.DELETING))


async def _create_once(deps: Deps, account_id: AccountId, sandbox_id: str, name: str | None, once: Once) -> Snapshot:
    while True:
        made = await deps.store.find_request(account_id, once)
        if made is not None:
            try:
                return await get_ready(deps, account_id, made)
            except NotFound:
                pass  # it came to nothing
        snapshot = await _create(deps, account_id, sandbox_id, name, replace(once, instead_of=made))
        if snapshot is not None:
            return snapshot


async def _create(
    deps: Deps, account_id: AccountId, sandbox_id: str, name: str | None, once: Once | None
) -> Snapshot | None:
    """None: another process has taken one for this request meanwhile."""
    source = await records.source(deps, account_id, sandbox_id)
    snapshot = _record(deps, source, name)
    deps.work.taking.add(snapshot.id)
    try:
        standing = await deps.store.add_snapshot(snapshot, once, most=deps.config.max_snapshots_per_account)
    except BaseException:
        deps.work.taking.discard(snapshot.id)
        raise
    if standing != snapshot.id:
        deps.work.taking.discard(snapshot.id)
        return None
    return await asyncio.shield(deps.tasks.spawn(_take(deps, source, snapshot), name=f"take {snapshot.id}"))


async def _take(deps: Deps, source: Sandbox, snapshot: Snapshot) -> Snapshot:
    try:
        archive = await _copy(deps, source, snapshot)
        size = None if archive is None else archive.size_bytes
        ready = await deps.store.move_snapshot(snapshot, SnapshotState.READY, archive=archive, size_bytes=size)
    except (Conflict, NotFound) as error:
        if error.code == "files_lost":
            await _undo(deps, snapshot)
        else:  # deleted while it was taken: the copy may have come after that
            await deps.provider.drop(TreeId(snapshot.id))
        raise
    except SkerryError:
        await _undo(deps, snapshot)
        raise
    finally:
        deps.work.taking.discard(snapshot.id)
    store_soon(deps, ready)
    return ready


async def _copy(deps: Deps, source: Sandbox, snapshot: Snapshot) -> Archive | None:
    """Have the node hold the files, and tell which archive has the same: a stopped sandbox's is its own."""
    archive = placing.stored(source)
    try:
        await placing.capture(deps, source, TreeId(snapshot.id))
    except Conflict:
        if archive is None:
            raise
    now = await deps.store.get_sandbox(source.id)
    return archive if placing.stored(now) == archive else None


async def _undo(deps: Deps, snapshot: Snapshot) -> None:
    """What cannot be undone now is undone by the reconciler."""
    try:
        await finish_delete(deps, await deps.store.move_snapshot(snapshot, SnapshotState.DELETING))
    except SkerryError:
        return


async def _store(deps: Deps, snapshot: Snapshot) -> None:
    try:
        archive = await archives.store(deps, snapshot.account_id, TreeId(snapshot.id), snapshot.id)
    except SkerryError as error:
        pause_s = deps.retries.put_off(snapshot.id, deps.clock.now())
        missing = error.code == "tree_missing"
        detail = _LOST if missing else f"{error.message} Its files are on its node; it is tried again in {pause_s} s."
        await _note(deps, snapshot, detail)
        return
    deps.retries.forget(snapshot.id)
    await _note(deps, snapshot, "", archive)


async def _note(deps: Deps, snapshot: Snapshot, detail: str, archive: Archive | None = None) -> None:
    size = None if archive is None else archive.size_bytes
    try:
        await deps.store.move_snapshot(snapshot, SnapshotState.READY, archive=archive, size_bytes=size, detail=detail)
    except (Conflict, NotFound):
        return  # deleted meanwhile


def _record(deps: Deps, source: Sandbox, name: str | None) -> Snapshot:
    now = deps.clock.now()
    return Snapshot(
        id=new_snapshot_id(),
        account_id=source.account_id,
        project_id=source.project_id,
        state=SnapshotState.CREATING,
        name=name or None,
        source_sandbox_id=source.id,
        template=source.template,
        limits=source.limits,
        timeout_s=source.timeout_s,
        network_mode=source.network_mode,
        created_at=now,
        updated_at=now,
        env=dict(source.env),
        startup_command=source.startup_command,
        idle_timeout_s=source.idle_timeout_s,
        capabilities=source.capabilities,
    )
