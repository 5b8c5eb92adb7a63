"""A request that its client may send again without its being done again (the header `Idempotency-Key`)."""

from dataclasses import dataclass

from skerry.model.errors import Conflict


@dataclass(frozen=True, slots=True)
class Once:
    """`key` is the client's word for the request, `fingerprint` tells an equal request from another one.

    `instead_of` is what was made under the key before and came to nothing: the new attempt takes its place.
    """

    key: str
    fingerprint: str
    instead_of: str | None = None


def mismatch(key: str) -> Conflict:
    return Conflict(
        f"The Idempotency-Key '{key}' was sent with another request before. Take a new key for each request.",
        code="idempotency_mismatch",
    )
