"""Which thing stands for a request that may be sent again. Part of the transaction that makes the thing."""

from sqlalchemy import Connection, bindparam, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from skerry.model.ids import AccountId
from skerry.model.request import Once, mismatch
from skerry.store.box import Box
from skerry.store.prepared import Prepared
from skerry.store.sealing import FINGERPRINT
from skerry.store.tables import requests

_OF = requests.c
_THIS = (_OF.account_id == bindparam("account_"), _OF.key == bindparam("key_"))
_FIND = Prepared(select(_OF.fingerprint, _OF.made).where(*_THIS))
# Gives a row where there was none before.
_ADD = Prepared(insert(requests).on_conflict_do_nothing().returning(_OF.made), [column.name for column in _OF])
_REPLACE = Prepared(
    update(requests).where(*_THIS).values(made=bindparam("new_made"), created_at_us=bindparam("new_at"))
)


def find(connection: Connection, box: Box, account_id: AccountId, wanted: Once) -> str | None:
    """The id of what was made for this request, or None.

    Raises:
        Conflict: The key was another request's (`idempotency_mismatch`).
    """
    row = _FIND.run(connection, {"account_": account_id, "key_": wanted.key})
    if row is None:
        return None
    if box.open(row[0], FINGERPRINT.place(account_id, wanted.key)).decode() != wanted.fingerprint:
        raise mismatch(wanted.key)
    return row[1]


def claim(
    connection: Connection, box: Box, account_id: AccountId, wanted: Once | None, made: str, at_us: int
) -> str | None:
    """Note that `made` stands for the request; or the id of what already does, and then nothing may be made.

    Raises:
        Conflict: As `find`.
    """
    if wanted is None:
        return None
    sealed = box.seal(wanted.fingerprint.encode(), FINGERPRINT.place(account_id, wanted.key))
    row = {"account_id": account_id, "key": wanted.key, "fingerprint": sealed, "made": made, "created_at_us": at_us}
    if _ADD.run(connection, row) is not None:
        return None
    present = find(connection, box, account_id, wanted)
    if present != wanted.instead_of:
        return present
    new = {"account_": account_id, "key_": wanted.key, "new_made": made, "new_at": at_us}
    _REPLACE.run(connection, new)
    return None


def forget(connection: Connection, before_us: int) -> None:
    connection.execute(delete(requests).where(_OF.created_at_us < before_us))
