"""The snapshots and vaults of a `MemoryStore`."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from skerry.model.capture import Archive, Vault
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, ArchiveId, SandboxId, SnapshotId, new_vault_id
from skerry.model.snapshot import Snapshot, SnapshotState, too_many
from skerry.seams import Clock


class MemorySnapshots:
    """See `seams.Store`; `vaults` are those that were made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._snapshots: dict[SnapshotId, Snapshot] = {}
        self.vaults: dict[AccountId, Vault] = {}

    def vault(self, account_id: AccountId) -> Vault:
        return self.vaults.setdefault(account_id, Vault(new_vault_id(), secrets.token_bytes(32)))

    def archives(self, account_id: AccountId) -> set[ArchiveId]:
        own = [s for s in self._snapshots.values() if s.account_id == account_id]
        return {s.archive.id for s in own if s.archive is not None}

    def add(self, snapshot: Snapshot) -> None:
        self._snapshots[snapshot.id] = snapshot

    def require_fewer(self, account_id: AccountId, most: int) -> None:
        """Raises Conflict where the account has `most` snapshots, or more."""
        if sum(s.account_id == account_id for s in self._snapshots.values()) >= most:
            raise too_many(most)

    def get(self, snapshot_id: SnapshotId) -> Snapshot:
        if snapshot_id not in self._snapshots:
            raise NotFound(f"No snapshot '{snapshot_id}'.")
        return self._snapshots[snapshot_id]

    def page(
        self,
        account_id: AccountId | None,
        states: Sequence[SnapshotState] | None,
        source: SandboxId | None,
        name: str | None,
        before: SnapshotId | None,
    ) -> Sequence[Snapshot]:
        newest_first = list(reversed(self._snapshots.values()))
        if before is not None:
            ids = [snapshot.id for snapshot in newest_first]
            newest_first = newest_first[ids.index(before) + 1 :] if before in ids else []
        return [
            snapshot
            for snapshot in newest_first
            if (account_id is None or snapshot.account_id == account_id)
            and (states is None or snapshot.state in states)
            and (source is None or snapshot.source_sandbox_id == source)
            and (name is None or snapshot.name == name)
        ]

    def move(
        self,
        snapshot: Snapshot,
        state: SnapshotState,
        archive: Archive | None,
        size_bytes: int | None,
        detail: str | None,
    ) -> Snapshot:
        now = self.get(snapshot.id)
        if now.state is not snapshot.state:
            raise Conflict(f"Snapshot '{now.id}' became {now.state} meanwhile.", code=f"snapshot_{now.state}")
        moved = replace(
            now,
            state=state,
            updated_at=self._clock.now(),
            archive=archive or now.archive,
            size_bytes=now.size_bytes if size_bytes is None else size_bytes,
            detail=now.detail if detail is None else detail,
        )
        self._snapshots[snapshot.id] = moved
        return moved

    def remove(self, snapshot_id: SnapshotId) -> None:
        self._snapshots.pop(snapshot_id, None)
