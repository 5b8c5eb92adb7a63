"""Snapshots and vaults, as functions of a connection. Part of `SqlStore`'s transactions."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, text, update

from skerry.model.capture import Archive, Vault
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, ArchiveId, ProjectId, SandboxId, SnapshotId, VaultId, new_vault_id
from skerry.model.request import Once
from skerry.model.sandbox import Limits, NetworkMode
from skerry.model.snapshot import Snapshot, SnapshotState, too_many
from skerry.store import once, rows
from skerry.store.box import Box
from skerry.store.sealing import SNAPSHOT_ENV, VAULT_KEY, open_env, seal_env
from skerry.store.tables import accounts, sandboxes, snapshots, vaults

_OF = snapshots.c
_STORED = text("archive IS NOT NULL AND state <> 'destroyed'")  # a literal: only then is the partial index used
_KEY_BYTES = 32


def add(
    connection: Connection, box: Box, snapshot: Snapshot, wanted: Once | None, most: int | None = None
) -> SnapshotId:
    row = _row(snapshot, box)
    earlier = once.claim(connection, box, snapshot.account_id, wanted, snapshot.id, row["created_at_us"])
    if earlier is not None:
        return SnapshotId(earlier)
    if most is not None and _count(connection, snapshot.account_id) >= most:
        raise too_many(most)
    connection.execute(insert(snapshots), row)
    return snapshot.id


def _count(connection: Connection, account_id: AccountId) -> int:
    count = select(func.count()).select_from(snapshots).where(_OF.account_id == account_id)
    return connection.execute(count).scalar_one()


def get(connection: Connection, box: Box, snapshot_id: SnapshotId) -> Snapshot:
    row = connection.execute(select(snapshots).where(_OF.id == snapshot_id)).one_or_none()
    if row is None:
        raise NotFound(f"No snapshot '{snapshot_id}'.")
    return snapshot_of(row, box)


def query(
    account_id: AccountId | None,
    states: Sequence[SnapshotState] | None,
    source: SandboxId | None,
    name: str | None,
    before: SnapshotId | None,
) -> Select[Any]:
    """Newest first."""
    chosen = select(snapshots).order_by(_OF.seq.desc())
    if account_id is not None:
        chosen = chosen.where(_OF.account_id == account_id)
    if states is not None:
        chosen = chosen.where(_OF.state.in_([state.value for state in states]))
    if source is not None:
        chosen = chosen.where(_OF.source_sandbox_id == source)
    if name is not None:
        chosen = chosen.where(_OF.name == name)
    if before is not None:
        chosen = chosen.where(_OF.seq < select(_OF.seq).where(_OF.id == before).scalar_subquery())
    return chosen


def move(
    connection: Connection, box: Box, snapshot: Snapshot, state: SnapshotState, values: Mapping[str, Any]
) -> Snapshot:
    chosen = update(snapshots).where(_OF.id == snapshot.id, _OF.state == snapshot.state.value)
    given = {name: value for name, value in values.items() if value is not None}
    if not connection.execute(chosen.values(state=state.value, **given)).rowcount:
        now = get(connection, box, snapshot.id)
        raise Conflict(f"Snapshot '{now.id}' became {now.state} meanwhile.", code=f"snapshot_{now.state}")
    return get(connection, box, snapshot.id)


def remove(connection: Connection, snapshot_id: SnapshotId) -> None:
    connection.execute(delete(snapshots).where(_OF.id == snapshot_id))


def find_vault(connection: Connection, box: Box, account_id: AccountId) -> Vault | None:
    row = connection.execute(select(vaults).where(vaults.c.account_id == account_id)).one_or_none()
    return None if row is None else _vault_of(row, box)


def vault(connection: Connection, box: Box, account_id: AccountId, at_us: int) -> Vault:
    """The account's, made if there is none."""
    present = find_vault(connection, box, account_id)
    if present is not None:
        return present
    if connection.execute(select(accounts.c.id).where(accounts.c.id == account_id)).one_or_none() is None:
        raise NotFound("No such account.")
    made = Vault(new_vault_id(), secrets.token_bytes(_KEY_BYTES))
    sealed = box.seal(made.key, VAULT_KEY.place(account_id))
    row = {"account_id": account_id, "id": made.id, "key": sealed, "created_at_us": at_us}
    connection.execute(insert(vaults), row)
    return made


def all_vaults(connection: Connection, box: Box) -> Mapping[AccountId, Vault]:
    return {AccountId(row[0]): _vault_of(row, box) for row in connection.execute(select(vaults))}


def archives_wanted(connection: Connection, account_id: AccountId) -> set[ArchiveId]:
    """One for each archive that a record names; both tables from one instant."""
    kept = select(sandboxes.c.archive).where(_STORED, sandboxes.c.account_id == account_id)
    taken = select(_OF.archive).where(_OF.archive.is_not(None), _OF.account_id == account_id)
    return {ArchiveId(json.loads(row[0])["id"]) for row in connection.execute(kept.union(taken))}


def _vault_of(row: Sequence[Any], box: Box) -> Vault:
    (account, id_, key, _) = row
    return Vault(VaultId(id_), box.open(key, VAULT_KEY.place(account)))


def changes(
    archive: Archive | None, size_bytes: int | None, detail: str | None, at_us: int
) -> dict[str, str | int | None]:
    """What `move` is given; None leaves a member as it is."""
    return {
        "archive": rows.archive_row(archive),
        "size_bytes": size_bytes,
        "detail": detail,
        "updated_at_us": at_us,
    }


def _row(snapshot: Snapshot, box: Box) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "account_id": snapshot.account_id,
        "project_id": snapshot.project_id,
        "state": snapshot.state.value,
        "name": snapshot.name,
        "source_sandbox_id": snapshot.source_sandbox_id,
        "template": snapshot.template,
        "limits": json.dumps(asdict(snapshot.limits)),
        "timeout_s": snapshot.timeout_s,
        "network_mode": snapshot.network_mode.value,
        "created_at_us": rows.to_us(snapshot.created_at),
        "updated_at_us": rows.to_us(snapshot.updated_at),
        "env": seal_env(box, snapshot.env, SNAPSHOT_ENV, snapshot.id),
        "startup_command": snapshot.startup_command,
        "idle_timeout_s": snapshot.idle_timeout_s,
        "capabilities": json.dumps(snapshot.capabilities),
        "size_bytes": snapshot.size_bytes,
        "archive": rows.archive_row(snapshot.archive),
        "detail": snapshot.detail,
    }


def snapshot_of(row: Sequence[Any], box: Box) -> Snapshot:
    (_, id_, account, project, state, name, source, template, limits, timeout_s, network, created, updated) = row[:13]
    (env, startup, idle_s, capabilities, size, archive, detail) = row[13:]
    return Snapshot(
        id=SnapshotId(id_),
        account_id=AccountId(account),
        project_id=ProjectId(project),
        state=SnapshotState(state),
        name=name,
        source_sandbox_id=SandboxId(source),
        template=template,
        limits=Limits(**json.loads(limits)),
        timeout_s=timeout_s,
        network_mode=NetworkMode(network),
        created_at=rows.from_us(created),
        updated_at=rows.from_us(updated),
        env=open_env(box, env, SNAPSHOT_ENV, id_),
        startup_command=startup,
        idle_timeout_s=idle_s,
        capabilities=tuple(json.loads(capabilities)),
        size_bytes=size,
        archive=rows.archive_of(archive),
        detail=detail,
    )
