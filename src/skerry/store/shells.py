"""Shell sessions, as functions of a connection. Part of `SqlStore`'s transactions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from skerry.model.errors import NotFound
from skerry.model.ids import AccountId, CommandId, SandboxId, ShellId
from skerry.model.shell import MOST_SHELLS, ShellSession, ShellState, too_many
from skerry.store import rows
from skerry.store.box import Box
from skerry.store.sealing import SHELL_STATE
from skerry.store.tables import shells

_CLAIM = (
    update(shells)
    .where(shells.c.id == bindparam("id_"), shells.c.command_id.is_(None))
    .values(command_id=bindparam("command"), token=bindparam("new_token"), used_at_us=bindparam("at"))
)


def seal_state(box: Box, shell_id: ShellId, state: ShellState) -> str:
    """A session's state as it is kept. ASCII inside, so that lone surrogates come back as they were."""
    plain = json.dumps({"cwd": state.cwd, "set": dict(state.set), "unset": sorted(state.unset)})
    return box.seal(plain.encode(), SHELL_STATE.place(shell_id))


def open_state(box: Box, shell_id: str, sealed: str) -> ShellState:
    kept = json.loads(box.open(sealed, SHELL_STATE.place(shell_id)))
    return ShellState(kept["cwd"], kept["set"], frozenset(kept["unset"]))


def add(connection: Connection, box: Box, session: ShellSession) -> None:
    present = select(func.count()).select_from(shells).where(shells.c.sandbox_id == session.sandbox_id)
    if connection.execute(present).scalar_one() >= MOST_SHELLS:
        raise too_many(session.sandbox_id)
    row = {
        "id": session.id,
        "sandbox_id": session.sandbox_id,
        "account_id": session.account_id,
        "created_at_us": rows.to_us(session.created_at),
        "used_at_us": rows.to_us(session.used_at),
        "state": seal_state(box, session.id, session.state),
        "command_id": session.command_id,
        "token": session.token,
    }
    connection.execute(insert(shells), row)


def get(connection: Connection, box: Box, shell_id: ShellId) -> ShellSession:
    row = connection.execute(select(shells).where(shells.c.id == shell_id)).one_or_none()
    if row is None:
        raise NotFound(f"No session '{shell_id}'.")
    return _session_of(row, box)


def of_sandbox(connection: Connection, box: Box, sandbox_id: SandboxId) -> Sequence[ShellSession]:
    found = connection.execute(select(shells).where(shells.c.sandbox_id == sandbox_id).order_by(shells.c.seq))
    return [_session_of(row, box) for row in found]


def claim(connection: Connection, claim: Mapping[str, object]) -> bool:
    return connection.execute(_CLAIM, claim).rowcount > 0


def release(connection: Connection, shell_id: ShellId, command_id: CommandId, sealed: str | None) -> None:
    change: dict[str, Any] = {"command_id": None, "token": None}
    if sealed is not None:
        change["state"] = sealed
    connection.execute(update(shells).where(shells.c.id == shell_id, shells.c.command_id == command_id).values(change))


def remove(connection: Connection, shell_id: ShellId) -> None:
    connection.execute(delete(shells).where(shells.c.id == shell_id))


def remove_of(connection: Connection, sandbox_id: SandboxId) -> None:
    connection.execute(delete(shells).where(shells.c.sandbox_id == sandbox_id))


def _session_of(row: Sequence[Any], box: Box) -> ShellSession:
    (_, id_, sandbox, account, created, used, state, command, token) = row
    return ShellSession(
        id=ShellId(id_),
        sandbox_id=SandboxId(sandbox),
        account_id=AccountId(account),
        created_at=rows.from_us(created),
        used_at=rows.from_us(used),
        state=open_state(box, id_, state),
        command_id=None if command is None else CommandId(command),
        token=token,
    )
