"""Remembers, for a moment, which account a key belongs to. Never holds a secret: only hashes."""

from datetime import datetime, timedelta

from skerry.model.account import ApiKey
from skerry.model.ids import KeyId

# A key that another process deletes goes on working here for this long; one deleted here ends at once.
_KEEP = timedelta(seconds=2)
_MOST = 10_000


class KeyCache:
    """Found keys by hash. A wrong key is never remembered."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[ApiKey, datetime]] = {}

    def get(self, secret_hash: bytes, now: datetime) -> ApiKey | None:
        entry = self._found.get(secret_hash)
        return entry[0] if entry is not None and now < entry[1] else None

    def put(self, key: ApiKey, now: datetime) -> None:
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found[key.secret_hash] = (key, now + _KEEP)

    def forget(self, key_id: KeyId) -> None:
        self._found = {hash_: entry for hash_, entry in self._found.items() if entry[0].id != key_id}
