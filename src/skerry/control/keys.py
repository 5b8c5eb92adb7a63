"""Remembers, for a moment, which account a key belongs to, and when keys were used; tells when one was deleted.

Holds no secret: only hashes.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from skerry.model.account import ApiKey
from skerry.model.ids import AccountId, KeyId

# A key that another process deletes goes on working here for this long; one deleted here ends at once.
_KEEP = timedelta(seconds=2)
_LATELY = timedelta(seconds=8)  # and so long ago something may have been let in by one, and begins only now
_MOST = 10_000
# How exact `last_used_at` is: a key that is used all the time is written down this often.
NOTE_EVERY = timedelta(minutes=1)


class KeyCache:
    """Found keys by hash. A wrong key is never remembered."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[ApiKey, datetime]] = {}
        self._used: dict[KeyId, datetime] = {}
        self._written: dict[KeyId, datetime] = {}
        self._deleted: dict[AccountId, set[asyncio.Future[None]]] = {}

    def get(self, secret_hash: bytes, now: datetime) -> ApiKey | None:
        entry = self._found.get(secret_hash)
        return entry[0] if entry is not None and now < entry[1] else None

    def put(self, key: ApiKey, now: datetime) -> None:
        """Remember a key that was looked up just now, because it is used."""
        if len(self._found) >= _MOST:
            self._found.clear()
            self._written.clear()
        self._found[key.secret_hash] = (key, now + _KEEP)
        self._used[key.id] = now

    def of(self, account_id: AccountId, now: datetime) -> set[KeyId]:
        """Those of an account that were good a moment ago."""
        found = self._found.values()
        return {key.id for key, until in found if key.account_id == account_id and now < until + _LATELY}

    async def deleted(self, account_id: AccountId) -> None:
        """Return when a key of this account is deleted here: what was opened with a key may have been with that one."""
        waiting = self._deleted.setdefault(account_id, set())
        told = asyncio.get_running_loop().create_future()
        waiting.add(told)
        try:
            await told
        finally:
            waiting.discard(told)
            if not waiting and self._deleted.get(account_id) is waiting:
                del self._deleted[account_id]

    def forget(self, key_id: KeyId, account_id: AccountId) -> None:
        """A key of this account was deleted."""
        for told in self._deleted.get(account_id, ()):
            if not told.done():
                told.set_result(None)
        self._found = {hash_: entry for hash_, entry in self._found.items() if entry[0].id != key_id}
        self._used.pop(key_id, None)
        self._written.pop(key_id, None)

    def unwritten(self, now: datetime) -> Mapping[KeyId, datetime]:
        """Uses that are to be written down: of each key one a minute at most."""
        return {
            key_id: used
            for key_id, used in self._used.items()
            if key_id not in self._written or now - self._written[key_id] >= NOTE_EVERY
        }

    def written(self, used: Mapping[KeyId, datetime]) -> None:
        """These uses are on record."""
        for key_id, at in used.items():
            self._written[key_id] = at
            if self._used.get(key_id) == at:
                del self._used[key_id]
