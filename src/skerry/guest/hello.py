"""The greeting of `sbxd/PROTOCOL.md` as pure functions: reading sbxd's HELLO, composing the host's. No I/O."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any

from skerry.model.errors import ProtocolError

PROTOCOL = 1
SECRET_BYTES = 32

_BOOT = re.compile(r"[0-9a-f]{32}")
_NONCE = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")


@dataclass(frozen=True, slots=True)
class Hello:
    """sbxd's greeting. `boot` changes when sbxd starts anew, `nonce` with each connection."""

    protocol: int
    sbxd: str
    boot: str
    nonce: str
    secured: bool


def read_hello(value: dict[str, Any]) -> Hello:
    """Raises ProtocolError on a member of the wrong form, and on a version that this host does not speak."""
    protocol, sbxd, boot = value.get("protocol"), value.get("sbxd"), value.get("boot")
    nonce, secured = value.get("nonce"), value.get("secured")
    if type(protocol) is not int or protocol != PROTOCOL:
        raise ProtocolError(
            f"The sandbox speaks protocol {str(protocol)[:20]} and this host {PROTOCOL}: "
            "it was started by another version of Skerry. Create it anew."
        )
    if (
        not (type(sbxd) is str and _VERSION.fullmatch(sbxd))
        or not (type(boot) is str and _BOOT.fullmatch(boot))
        or not (type(nonce) is str and _NONCE.fullmatch(nonce))
        or type(secured) is not bool
    ):
        raise ProtocolError("The sandbox's greeting is malformed.")
    return Hello(protocol, sbxd, boot, nonce, secured)


def proof(secret: bytes, hello: Hello) -> str:
    """What only a holder of the secret can answer to this greeting."""
    message = b"sbxd-proof-1" + bytes.fromhex(hello.nonce) + bytes.fromhex(hello.boot)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def answer(hello: Hello, secret: bytes, *, first: bool) -> dict[str, object]:
    """The host's HELLO: the secret itself on a sandbox's `first` connection, and never again a thing but proofs.

    Raises:
        ProtocolError: sbxd claims to be in another state than the caller knows it to be in. A process inside that
            poses as a fresh sbxd would otherwise be told the secret.
    """
    if hello.secured == first:
        raise ProtocolError("The sandbox's daemon is " + ("already" if first else "not yet") + " secured.")
    if first:
        return {"protocol": PROTOCOL, "secret": secret.hex()}
    return {"protocol": PROTOCOL, "proof": proof(secret, hello)}
