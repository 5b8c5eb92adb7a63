"""An object store in an S3 bucket, by obstore. Bounded retries and waits; no message carries a credential."""

from collections.abc import Iterator
from datetime import timedelta

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from skerry.blobs.objects import checked_key, checked_prefix
from skerry.model.capture import Blob
from skerry.model.errors import Invalid, NotFound, Unavailable

_RETRIES = 3
_RETRY_S = 30
_CONNECT_S = 5
_REQUEST_S = 120  # a pack of 16 MB at 1 Mbit/s
_WORDS = 300  # of the store's answer, in our message


class S3Objects:
    """Objects of one bucket, below a prefix. Without keys the host's role opens it."""

    def __init__(
        self, bucket: str, prefix: str, *, endpoint: str, region: str, access_key: str, secret_key: str
    ) -> None:
        self._secrets = tuple(secret for secret in (secret_key, access_key) if secret)
        optional = {"endpoint": endpoint, "access_key_id": access_key, "secret_access_key": secret_key}
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix or None,
                config={"region": region, **{name: value for name, value in optional.items() if value}},  # pyright: ignore[reportArgumentType]
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "connect_timeout": timedelta(seconds=_CONNECT_S),
                    "timeout": timedelta(seconds=_REQUEST_S),
                },
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=_RETRY_S),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=2),
                        "base": 2,
                    },
                },
            )
        except (BaseError, ValueError) as error:
            raise Invalid(f"The archive bucket cannot be used as configured: {self._words(error)}") from None

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        # One request: a broken-off upload in parts would lie hidden in the bucket, and cost, for ever.
        mode = "create" if create_only else "overwrite"
        try:
            obstore.put(self._store, checked_key(key), data, mode=mode, use_multipart=False)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from None
        return True

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        checked_key(key)
        try:
            if start == 0 and length is None:
                return obstore.get(self._store, key).bytes().to_bytes()
            if start == 0 and length is not None:
                found = obstore.get(self._store, key)  # no range: of an empty object there is none
                if found.meta["size"] <= length:
                    return found.bytes().to_bytes()
            size = obstore.head(self._store, key)["size"] if length is None else None
            end = start + length if length is not None else size
            assert end is not None
            if end <= start:
                return b""
            return obstore.get_range(self._store, key, start=start, end=end).to_bytes()
        except FileNotFoundError:
            raise NotFound(f"The object store has no {key}.") from None
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from None

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, checked_key(key))
        except FileNotFoundError:
            return
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from None

    def list(self, prefix: str) -> Iterator[Blob]:
        name = checked_prefix(prefix)
        try:
            for page in obstore.list(self._store, name or None, chunk_size=1000):
                for found in page:
                    yield Blob(found["path"], found["size"], found["last_modified"])
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"The object store cannot be used now: {self._words(error)}")

    def _words(self, error: Exception) -> str:
        """What the store said, on one line, without our keys: S3 repeats the access key in some of its answers."""
        text = str(error)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return line if len(line) <= _WORDS else line[:_WORDS] + "…"
