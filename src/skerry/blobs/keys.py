"""What is derived from a vault's key: one key a purpose, the names of chunks, sealing and opening.

Everything that leaves this machine is sealed with AES-256-GCM under a random nonce, and bound to its vault, its kind
and its place by the associated data: nothing can be put in place of anything else, not even of the same vault's.
"""

import os

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from skerry.blobs.limits import damaged
from skerry.model.capture import Vault
from skerry.model.errors import Invalid

VERSION = 1
KEY_BYTES = ID_BYTES = 32
NONCE_BYTES, TAG_BYTES = 12, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES
Data = bytes | bytearray | memoryview


class Keys:
    """The keys of one vault. May be used from several threads."""

    def __init__(self, vault: Vault) -> None:
        if len(vault.key) != KEY_BYTES:
            raise Invalid("The key of a vault has 32 bytes.")
        self.vault_id = vault.id
        self._master = vault.key
        self._chunks = self._derive("chunk names")
        self._segments = AESGCM(self._derive("segments"))
        self._indices = AESGCM(self._derive("indices"))
        self._roots = AESGCM(self._derive("roots"))

    @property
    def cut_seed(self) -> int:
        """Where chunks are cut depends on it, so that sizes of packs tell less of what is in them."""
        return int.from_bytes(self._derive("cuts")[:4], "little") >> 1

    @property
    def cache_seal(self) -> bytes:
        """Marks local caches as this vault's."""
        return self._derive("caches")[:16]

    def chunk_id(self, data: Data) -> bytes:
        return blake3(data, key=self._chunks).digest()

    def seal_segment(self, plain: Data, pack: str, number: int) -> bytes:
        return _seal(self._segments, plain, self._bound("segment", pack, number))

    def open_segment(self, sealed: Data, pack: str, number: int) -> bytes:
        return _open(self._segments, sealed, self._bound("segment", pack, number), f"pack {pack} segment {number}")

    def seal_index(self, plain: Data, pack: str) -> bytes:
        return _seal(self._indices, plain, self._bound("index", pack))

    def open_index(self, sealed: Data, pack: str) -> bytes:
        return _open(self._indices, sealed, self._bound("index", pack), f"the index of pack {pack}")

    def seal_root(self, plain: Data, archive: str) -> bytes:
        return _seal(self._roots, plain, self._bound("root", archive))

    def open_root(self, sealed: Data, archive: str) -> bytes:
        return _open(self._roots, sealed, self._bound("root", archive), f"the root of archive {archive}")

    def _derive(self, purpose: str) -> bytes:
        info = f"skerry archive {VERSION}\0{self.vault_id}\0{purpose}".encode()
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._master)

    def _bound(self, kind: str, name: str, number: int = 0) -> bytes:
        return f"skerry archive {VERSION}\0{kind}\0{self.vault_id}\0{name}\0{number}".encode()


def _seal(cipher: AESGCM, plain: Data, bound: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, plain, bound)


def _open(cipher: AESGCM, sealed: Data, bound: bytes, what: str) -> bytes:
    view = memoryview(sealed)
    if len(view) < OVERHEAD:
        raise damaged(f"{what} is cut off")
    try:
        return cipher.decrypt(bytes(view[:NONCE_BYTES]), view[NONCE_BYTES:], bound)
    except InvalidTag:
        raise damaged(f"{what} is not what was written, or of another vault's key") from None
