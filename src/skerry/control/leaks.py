"""What is held and on no record, all of it: the node's, what records and provider disagree about, and the vaults'.

Looks and says; the reconciler and the node mend. For the operator: it is about all accounts.
"""

import asyncio
from collections.abc import Iterable

from skerry.control.deps import Deps
from skerry.control.keeping import GRACE_S
from skerry.model.capture import Held, Vault
from skerry.model.errors import SkerryError
from skerry.model.ids import AccountId, SandboxId, SnapshotId, TreeId
from skerry.model.leak import Leak, LeakKind, Leaks
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Sandbox
from skerry.model.snapshot import Snapshot, SnapshotState

_VAULT_S = 30.0
_ALL_VAULTS_S = 120.0
_DESTROYED = "the server destroys it within seconds; if it stays, its log says why"
_DROPPED = "the server drops it within seconds; if it stays, its log says why"
_DISAGREES = "its record says that it runs, and its node holds nothing of it: it becomes `failed` within seconds"
_FILES_LOST = "its files are nowhere: delete it (skerry snapshot rm {id})"
_SWEPT = "no archive that is wanted needs it: it is swept within two hours"


async def find(deps: Deps) -> Leaks:
    """One look at everything. Takes a moment for each account that has stored something.

    Raises:
        Unavailable: The node or the database does not answer.
    """
    found = [*await deps.provider.leaks(), *await _disagreements(deps)]
    archives, unchecked = await _archives(deps)
    return Leaks((*found, *archives), tuple(unchecked))


async def _disagreements(deps: Deps) -> list[Leak]:
    """What is wanted is read after what is there, and what has to run before: what moves in between is no finding."""
    expected = await deps.store.list_sandboxes(states=[State.RUNNING])
    seen = {each.id for each in await deps.provider.list()}
    trees = await deps.provider.trees()
    alive = [state for state in State if state is not State.DESTROYED]
    records = {sandbox.id: sandbox for sandbox in await deps.store.list_sandboxes(states=alive)}
    snapshots = {snapshot.id: snapshot for snapshot in await deps.store.list_snapshots()}
    found = [Leak(LeakKind.SANDBOX, one, _DESTROYED) for one in sorted(seen) if not _wanted(deps, one, records)]
    found += [
        Leak(LeakKind.SANDBOX, one.id, _DISAGREES)
        for one in expected
        if one.id not in seen and records.get(one.id) == one
    ]
    found += _unwanted_trees(deps, trees, snapshots)
    return [*found, *_lost_snapshots(deps, {tree.id for tree in trees}, snapshots.values())]


def _wanted(deps: Deps, sandbox_id: SandboxId, records: dict[SandboxId, Sandbox]) -> bool:
    record = records.get(sandbox_id)
    never_made = record is not None and record.state is State.FAILED and record.cause is Cause.CREATE
    return sandbox_id in deps.creating or (record is not None and not never_made)


def _unwanted_trees(deps: Deps, trees: Iterable[Held], snapshots: dict[SnapshotId, Snapshot]) -> Iterable[Leak]:
    for tree in trees:
        held = tree.id in deps.work.held or SnapshotId(tree.id) in snapshots
        if not tree.id.startswith("sbx_") and not held:
            young = (deps.clock.now() - tree.created_at).total_seconds() <= GRACE_S
            # Another process of the API may be copying from it.
            yield Leak(LeakKind.TREE, tree.id, _DROPPED, tree.size_bytes, waiting=young and not deps.sole)


def _lost_snapshots(deps: Deps, held: set[TreeId], snapshots: Iterable[Snapshot]) -> Iterable[Leak]:
    for one in snapshots:
        if one.state is SnapshotState.READY and one.archive is None and TreeId(one.id) not in held:
            yield Leak(LeakKind.SNAPSHOT, one.id, _FILES_LOST.format(id=one.id), one.size_bytes)


async def _archives(deps: Deps) -> tuple[list[Leak], list[str]]:
    if not deps.config.archive_place:
        return [], []
    found: list[Leak] = []
    unchecked: list[str] = []
    until = asyncio.get_running_loop().time() + _ALL_VAULTS_S
    for account_id, vault in (await deps.store.list_vaults()).items():
        left_s = until - asyncio.get_running_loop().time()
        try:
            if left_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(min(left_s, _VAULT_S)):
                found += await _vault(deps, account_id, vault)
        except TimeoutError:
            unchecked.append(f"vault {vault.id} of {account_id}: it is being worked on, or large; ask again later")
        except SkerryError as error:
            unchecked.append(f"vault {vault.id} of {account_id}: {error.message}")
    return found, unchecked


async def _vault(deps: Deps, account_id: AccountId, vault: Vault) -> list[Leak]:
    """All that no record needs, however young: it waits for its sweep, unless sweeping does not succeed."""
    swept = await deps.provider.sweep(vault, await deps.store.archives_wanted(account_id), older_than_s=0, dry=True)
    if not swept.freed_objects:
        return []
    trouble = deps.work.unswept.get(account_id)
    fate = _SWEPT if trouble is None else f"it could not be swept ({trouble}); that is tried again each hour"
    name = f"{swept.freed_objects} objects in vault {vault.id} of {account_id}"
    return [Leak(LeakKind.ARCHIVES, name, fate, swept.freed_bytes, waiting=trouble is None)]
