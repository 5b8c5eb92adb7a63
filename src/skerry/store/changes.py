"""Changes to what a sandbox is called and given: name, metadata, environment. Its state is the store's to move."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, update

from skerry.model.ids import SandboxId
from skerry.model.sandbox import Change, Sandbox, labels_of
from skerry.store import rows
from skerry.store.box import Box
from skerry.store.sealing import SANDBOX_ENV, seal_env
from skerry.store.tables import sandbox_labels, sandboxes

_TOUCH = (
    update(sandboxes)
    .where(sandboxes.c.id == bindparam("id_"), func.coalesce(sandboxes.c.active_at_us, 0) < bindparam("at_"))
    .values(active_at_us=bindparam("at_"))
)


def change(connection: Connection, box: Box, sandbox: Sandbox, wanted: Change, at_us: int) -> None:
    """Replace what is given. The labels, which lists look for, follow the metadata."""
    values: dict[str, Any] = {"updated_at_us": at_us}
    if wanted.name is not None:
        values["name"] = wanted.name or None
    if wanted.env is not None:
        values["env"] = seal_env(box, wanted.env, SANDBOX_ENV, sandbox.id)
    if wanted.detail is not None:
        values["detail"] = wanted.detail
    if wanted.metadata is not None:
        values["metadata"] = json.dumps(dict(wanted.metadata))
        connection.execute(delete(sandbox_labels).where(sandbox_labels.c.sandbox_id == sandbox.id))
        label(connection, sandbox.id, labels_of(wanted.metadata))
    connection.execute(update(sandboxes).where(sandboxes.c.id == sandbox.id).values(values))


def touch(connection: Connection, used: Mapping[SandboxId, datetime]) -> None:
    connection.execute(_TOUCH, [{"id_": sandbox_id, "at_": rows.to_us(at)} for sandbox_id, at in used.items()])


def label(connection: Connection, sandbox_id: SandboxId, labels: Mapping[str, str]) -> None:
    """Note the entries of the metadata that can be searched for."""
    rows = [{"sandbox_id": sandbox_id, "key": key, "value": value} for key, value in labels.items()]
    if rows:
        connection.execute(insert(sandbox_labels), rows)
