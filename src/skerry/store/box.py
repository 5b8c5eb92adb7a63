"""Seals secrets for the database, with AES-256-GCM and keys from a file. Decides nothing about what is a secret.

A sealed value is text: `s1.<key id>.<nonce, ciphertext and tag in base64>`. It is bound to its place (table, column and
row), so that a value copied to another row does not open there. The file holds one key a line, base64 of 32 bytes:
the first seals, all of them open. A key's id is a hash of it, so that a wrong key is told from a broken value.
"""

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from skerry.model.errors import Unavailable

_VERSION = "s1"
_KEY_BYTES, _NONCE_BYTES = 32, 12


class Box:
    """Keys at hand, the first of them the one to seal with. Its repr shows none."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {key_id(key): AESGCM(key) for key in keys}
        self.current = key_id(keys[0])

    @property
    def key_ids(self) -> frozenset[str]:
        return frozenset(self._ciphers)

    def seal(self, plain: bytes, place: str) -> str:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[self.current].encrypt(nonce, plain, place.encode())
        return f"{_VERSION}.{self.current}.{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, place: str) -> bytes:
        """What was sealed for this place.

        Raises:
            Unavailable: The key is not at hand, or the value was damaged, changed or moved.
        """
        version, _, rest = sealed.partition(".")
        used, _, body = rest.partition(".")
        if version != _VERSION or used not in self._ciphers:
            raise Unavailable(f"The secret of {place} was sealed with key '{used[:32]}', which is not at hand.")
        try:
            raw = base64.b64decode(body, validate=True)
            return self._ciphers[used].decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError) as error:
            raise Unavailable(f"The secret of {place} was damaged or changed in the database.") from error

    def is_current(self, sealed: str) -> bool:
        """Whether it was sealed with the key that seals now."""
        return sealed.startswith(f"{_VERSION}.{self.current}.")


def key_id(key: bytes) -> str:
    return hashlib.sha256(b"skerry sealing key\0" + key).hexdigest()[:16]


def read_keys(path: Path) -> list[bytes]:
    """The keys in a file.

    Raises:
        FileNotFoundError: There is none.
        Unavailable: It cannot be read, others can read it, or it holds something else.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise Unavailable(f"{path} opens the secrets in the database and others can read it. chmod 600 {path}")
        keys = [base64.b64decode(line, validate=True) for line in path.read_text().split()]
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Unavailable(f"{path} holds something else than keys. Put the file back from its backup.") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}.") from error
    if not keys or any(len(key) != _KEY_BYTES for key in keys):
        raise Unavailable(f"{path} holds no key, or half of one. Put the file back from its backup.")
    return keys


def make_keys(path: Path) -> None:
    """Make the file with one new key, for its owner alone, on the disk before this returns. Never over another one."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.unlink(missing_ok=True)
    handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode() + "\n")
            file.flush()
            os.fsync(handle)
        with suppress(FileExistsError):
            os.link(half, path)
    finally:
        half.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
