"""Which columns are sealed, and what opening a database has to do about them: keys that fit, nothing left in clear."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from skerry.model.env import Env
from skerry.model.errors import Unavailable
from skerry.store.box import Box, make_keys, read_keys
from skerry.store.tables import requests, sandboxes, sealing_keys, shells, snapshots, vaults

NOTHING = "{}"  # an environment without variables: no secret, and most sandboxes have none


@dataclass(frozen=True, slots=True)
class Sealed:
    """A column with sealed values. `row` are the columns that name a row, which its values are bound to."""

    table: Table
    column: str
    row: tuple[str, ...]

    def place(self, *row: str) -> str:
        return f"{self.table.name}.{self.column} of {' '.join(row)}"


SANDBOX_ENV = Sealed(sandboxes, "env", ("id",))
FINGERPRINT = Sealed(requests, "fingerprint", ("account_id", "key"))
SHELL_STATE = Sealed(shells, "state", ("id",))
SNAPSHOT_ENV = Sealed(snapshots, "env", ("id",))
VAULT_KEY = Sealed(vaults, "key", ("account_id",))
# Another secret in the database is one more line here, and is then sealed anew with each new key.
SEALED = (SANDBOX_ENV, FINGERPRINT, SHELL_STATE, SNAPSHOT_ENV, VAULT_KEY)


def seal_env(box: Box, env: Mapping[str, str], column: Sealed, *row: str) -> str:
    return box.seal(json.dumps(dict(env)).encode(), column.place(*row)) if env else NOTHING


def open_env(box: Box, sealed: str, column: Sealed, *row: str) -> Env:
    """Opened when it is looked at; whoever does not look needs no key and meets no damage."""
    if sealed == NOTHING:
        return Env({})
    return Env(lambda: json.loads(box.open(sealed, column.place(*row))))


def prepare(connection: Connection, path: Path, now_us: int) -> Box:
    """The box of this database: its keys read, or made if nothing is sealed yet, and every value sealed with the first.

    Runs in a transaction: of several processes that start at once, one makes the file.

    Raises:
        Unavailable: The file is missing, or lacks a key that something may be sealed with.
    """
    needed = {row[0] for row in connection.execute(select(sealing_keys.c.id))}
    try:
        keys = read_keys(path)
    except FileNotFoundError:
        if needed:
            raise Unavailable(
                f"{path} is missing, and without it the secrets in the database cannot be opened (the environments of "
                "sandboxes, the keys of stored files). Put it back from its backup. Nothing was changed."
            ) from None
        make_keys(path)
        keys = read_keys(path)
    box = Box(keys)
    lacking = ", ".join(sorted(needed - box.key_ids))
    if lacking:
        raise Unavailable(
            f"{path} lacks the key that secrets in the database are sealed with ({lacking}). "
            "Put the file back from its backup, or add that key to it. Nothing was changed."
        )
    if needed != {box.current}:
        connection.execute(delete(sealing_keys))
        connection.execute(insert(sealing_keys), {"id": box.current, "created_at_us": now_us})
    for column in SEALED:
        _seal_anew(connection, box, column)
    return box


def _seal_anew(connection: Connection, box: Box, column: Sealed) -> None:
    table, names = column.table, column.row
    chosen = select(table.c[column.column], *(table.c[name] for name in names))
    change = update(table).values({column.column: bindparam("new_value")})
    for name in names:
        change = change.where(table.c[name] == bindparam(f"row_{name}"))
    for value, row in _outdated(connection.execute(chosen.where(table.c[column.column] != NOTHING)).all(), box):
        place = column.place(*row)
        plain = value.encode() if value.startswith("{") else box.open(value, place)  # in clear before schema 0002
        new = {f"row_{name}": part for name, part in zip(names, row, strict=True)}
        connection.execute(change, {"new_value": box.seal(plain, place), **new})


def _outdated(rows: Iterable[Iterable[str]], box: Box) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for value, *row in rows:
        if not box.is_current(value):
            found.append((value, row))
    return found
