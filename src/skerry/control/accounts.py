"""Accounts and keys: who a request comes from, and the first account of a new installation."""

import asyncio
import hmac
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import structlog

from skerry.control.deps import Deps
from skerry.model.account import Account, ApiKey, hash_secret, hint_of, new_secret
from skerry.model.errors import Refused, Unauthorized, Unavailable
from skerry.model.ids import AccountId, KeyId, new_account_id, new_key_id, new_project_id

LOOK_EVERY_S = 10.0  # whether other processes have deleted a key with which something here is open
_log = structlog.get_logger()


async def authenticate(deps: Deps, secret: str) -> AccountId:
    """The account that a key belongs to.

    The lookup is by the hash of what was sent: its timing tells nothing about any stored key.

    Raises:
        Unauthorized: No such key, or it was deleted.
    """
    hashed = hash_secret(secret)
    now = deps.clock.now()
    key = deps.keys.get(hashed, now)
    if key is None:
        key = await deps.store.find_key(hashed)
        if key is None:
            raise Unauthorized(
                "This API key is not known here. On the server, `skerry client-env` prints the first one."
            )
        deps.keys.put(key, now)
    return key.account_id


def is_metrics_token(deps: Deps, secret: str) -> bool:
    """Whether this is the token of the setting `metrics_token`, which opens nothing but the server's own metrics."""
    token = deps.config.metrics_token
    return bool(token) and hmac.compare_digest(token.encode(), secret.encode("utf-8", "surrogatepass"))


async def require_operator(deps: Deps, account_id: AccountId | None) -> None:
    """What is about all accounts is for who runs the server. None stands for the metrics token.

    Raises:
        Refused: The account is not the first one (`permission`).
    """
    if account_id is not None and account_id != (await deps.store.list_accounts())[0].id:
        raise Refused(
            "This is about all accounts, and for the server's operator: use a key of the first account (for /metrics"
            " also the metrics_token).",
            code="permission",
        )


async def get(deps: Deps, account_id: AccountId) -> Account:
    return await deps.store.get_account(account_id)


async def list_keys(deps: Deps, account_id: AccountId) -> Sequence[ApiKey]:
    return await deps.store.list_keys(account_id)


async def create_key(deps: Deps, account_id: AccountId, name: str) -> tuple[ApiKey, str]:
    """A new key and its secret, which exists nowhere else from here on."""
    secret = new_secret()
    key = ApiKey(new_key_id(), account_id, name, hash_secret(secret), deps.clock.now(), hint=hint_of(secret))
    await deps.store.add_key(key)
    return key, secret


async def delete_key(deps: Deps, account_id: AccountId, key_id: KeyId) -> None:
    """End a key at once (in other processes on the same database: within two seconds).

    The account's open WebSockets are closed (in other processes: within ten seconds), and its tickets void, whichever
    key they came from: whose key is good opens them again. Other answers that are under way go on to their end.

    The key that the call came with may go, too. The first key lies in the server's home as well and comes back with the
    next start while it lies there.

    Raises:
        NotFound: No such key in this account.
        Conflict: It is the account's only key (`last_key`): without one nobody could make another.
    """
    await deps.store.delete_key(account_id, key_id)
    deps.keys.forget(key_id, account_id)


async def key_deleted(deps: Deps, account_id: AccountId) -> None:
    """Return when a key of this account is deleted, here or, soon after it, by another process."""
    if deps.sole:
        await deps.keys.deleted(account_id)
        return
    looks = (deps.keys.deleted(account_id), _deleted_elsewhere(deps, account_id))
    looking = [asyncio.ensure_future(look) for look in looks]
    try:
        done, _ = await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


async def _deleted_elsewhere(deps: Deps, account_id: AccountId) -> None:
    known = deps.keys.of(account_id, deps.clock.now())
    while True:
        with suppress(Unavailable):
            present = {key.id for key in await deps.store.list_keys(account_id)}
            if known - present:
                return
            known = present
        await deps.clock.sleep_until(deps.clock.now() + timedelta(seconds=LOOK_EVERY_S))


async def bootstrap(deps: Deps, secret_hash: bytes, hint: str = "") -> Account:
    """Make sure that there is an account (plan `unlimited`) and that the key with this hash opens the first one.

    Safe to call at each start. A hash that is new to an old account is added: that is how a lost key is replaced.
    """
    now = deps.clock.now()
    present = await deps.store.list_accounts()
    if not present:
        account = Account(new_account_id(), "owner", "unlimited", new_project_id(), now)
        await deps.store.add_account(account, ApiKey(new_key_id(), account.id, "first", secret_hash, now, hint=hint))
        _log.info("first account made", account=account.id)
        return account
    if await deps.store.find_key(secret_hash) is None:
        await deps.store.add_key(ApiKey(new_key_id(), present[0].id, "first", secret_hash, now, hint=hint))
        _log.info("a new key opens the first account", account=present[0].id)
    return present[0]
