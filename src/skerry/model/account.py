"""Accounts and API keys. A key's secret exists only in its owner's hands; the record holds a hash."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from skerry.model.ids import AccountId, KeyId, ProjectId

KEY_PREFIX = "skerry_live_"


@dataclass(frozen=True, slots=True)
class Account:
    id: AccountId
    name: str
    plan: str
    default_project_id: ProjectId
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`secret_hash` is SHA-256 of the whole key: the secret has 256 random bits, so a slow hash would add nothing."""

    id: KeyId
    account_id: AccountId
    name: str
    secret_hash: bytes
    created_at: datetime
    last_used_at: datetime | None = None  # to the minute
    hint: str = ""  # the beginning of the secret, by which its owner knows it again; empty where it was not kept


def new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hint_of(secret: str) -> str:
    """So much of a secret as may be shown: 24 of its 256 random bits."""
    return secret[: len(KEY_PREFIX) + 4]


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
