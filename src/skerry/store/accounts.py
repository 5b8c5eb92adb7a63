"""Accounts and their keys. Part of `SqlStore`'s transactions."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from skerry.model.account import Account, ApiKey
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, KeyId
from skerry.store import rows, tickets
from skerry.store.tables import accounts, api_keys, projects

_KEY = select(api_keys).where(api_keys.c.secret_hash == bindparam("hash_"))
_TOUCH = (
    update(api_keys)
    .where(api_keys.c.id == bindparam("id_"))
    .where(func.coalesce(api_keys.c.last_used_at_us, 0) < bindparam("at_"))
    .values(last_used_at_us=bindparam("at_"))
)


def add(connection: Connection, account: Account, key: ApiKey) -> None:
    project = {
        "id": account.default_project_id,
        "account_id": account.id,
        "name": "default",
        "created_at_us": rows.to_us(account.created_at),
    }
    connection.execute(insert(accounts), rows.account_row(account))
    connection.execute(insert(projects), project)
    connection.execute(insert(api_keys), rows.key_row(key))


def get(connection: Connection, account_id: AccountId) -> Account:
    row = connection.execute(select(accounts).where(accounts.c.id == account_id)).one_or_none()
    if row is None:
        raise NotFound("No such account.")
    return rows.account_of(row)


def all_of_them(connection: Connection) -> Sequence[Account]:
    return [rows.account_of(row) for row in connection.execute(select(accounts).order_by(accounts.c.created_at_us))]


def add_key(connection: Connection, key: ApiKey) -> None:
    connection.execute(insert(api_keys), rows.key_row(key))


def find_key(connection: Connection, secret_hash: bytes) -> ApiKey | None:
    row = connection.execute(_KEY, {"hash_": secret_hash}).one_or_none()
    return None if row is None else rows.key_of(row)


def keys_of(connection: Connection, account_id: AccountId) -> Sequence[ApiKey]:
    query = select(api_keys).where(api_keys.c.account_id == account_id).order_by(api_keys.c.created_at_us)
    return [rows.key_of(row) for row in connection.execute(query)]


def delete_key(connection: Connection, account_id: AccountId, key_id: KeyId) -> None:
    own = api_keys.c.account_id == account_id
    keys = {row[0] for row in connection.execute(select(api_keys.c.id).where(own))}
    if key_id not in keys:
        raise NotFound(f"No API key '{key_id[:64]}'.")
    if len(keys) == 1:
        raise Conflict("This is the account's only key. Make another one first.", code="last_key")
    connection.execute(delete(api_keys).where(own, api_keys.c.id == key_id))
    tickets.void(connection, account_id=account_id)


def touch_keys(connection: Connection, used: Mapping[KeyId, datetime]) -> None:
    connection.execute(_TOUCH, [{"id_": key_id, "at_": rows.to_us(at)} for key_id, at in used.items()])
