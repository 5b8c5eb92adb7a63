"""Accounts, their keys and tickets, as every Store keeps them."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from skerry.model.account import ApiKey, hash_secret
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import (
    AccountId,
    new_command_id,
    new_key_id,
)
from skerry.model.ticket import Ticket
from skerry.seams import Store
from skerry.testing.store_suite.makers import NOW, add_account


class AccountsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_an_account_comes_back_as_it_was_given(self, store: Store) -> None:
        account = await add_account(store)
        assert await store.get_account(account.id) == account
        assert list(await store.list_accounts()) == [account]

    async def test_an_unknown_account_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.get_account(AccountId("acct_nobody"))

    async def test_a_key_is_found_by_its_hash_alone(self, store: Store) -> None:
        account = await add_account(store)
        key = ApiKey(new_key_id(), account.id, "second", hash_secret("secret"), NOW)
        await store.add_key(key)
        assert await store.find_key(hash_secret("secret")) == key
        assert await store.find_key(hash_secret("secret ")) is None
        assert key in await store.list_keys(account.id)

    async def test_a_deleted_key_is_gone_and_another_accounts_key_cannot_be_deleted(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        key = ApiKey(new_key_id(), one.id, "second", hash_secret("secret"), NOW, hint="skerry_live_abcd")
        await store.add_key(key)
        with pytest.raises(NotFound):
            await store.delete_key(two.id, key.id)
        await store.delete_key(one.id, key.id)
        assert await store.find_key(key.secret_hash) is None
        with pytest.raises(NotFound):
            await store.delete_key(one.id, key.id)

    async def test_an_accounts_only_key_cannot_be_deleted(self, store: Store) -> None:
        account = await add_account(store)
        (key,) = await store.list_keys(account.id)
        with pytest.raises(Conflict) as refused:
            await store.delete_key(account.id, key.id)
        assert refused.value.code == "last_key"
        assert list(await store.list_keys(account.id)) == [key]

    async def test_the_latest_use_of_a_key_is_kept(self, store: Store) -> None:
        account = await add_account(store)
        (key,) = await store.list_keys(account.id)
        for at in (NOW, NOW - timedelta(seconds=1)):
            await store.touch_keys({key.id: at, new_key_id(): at})
        assert list(await store.list_keys(account.id)) == [replace(key, last_used_at=NOW)]

    async def test_a_ticket_is_taken_once_and_stale_ones_go(self, store: Store) -> None:
        account = await add_account(store)
        later = datetime.now(UTC) + timedelta(hours=1)
        fresh, stale = (
            Ticket(hash_secret(text), account.id, new_command_id(), expires_at)
            for text, expires_at in (("fresh", later), ("stale", NOW - timedelta(days=20_000)))
        )
        await store.add_ticket(stale)
        await store.add_ticket(fresh)
        assert await store.take_ticket(stale.secret_hash) is None
        taken = await asyncio.gather(*(store.take_ticket(fresh.secret_hash) for _ in range(5)))
        assert sorted(taken, key=lambda each: each is None) == [fresh, None, None, None, None]

    async def test_with_a_key_the_tickets_of_its_account_go(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        spare = ApiKey(new_key_id(), one.id, "spare", hash_secret("spare"), NOW)
        await store.add_key(spare)
        later = datetime.now(UTC) + timedelta(hours=1)
        for account in (one, two):
            await store.add_ticket(Ticket(hash_secret(account.id), account.id, new_command_id(), later))
        await store.delete_key(one.id, spare.id)
        assert await store.take_ticket(hash_secret(one.id)) is None
        assert await store.take_ticket(hash_secret(two.id)) is not None

    async def test_a_store_that_is_open_answers_a_ping(self, store: Store) -> None:
        await store.ping()
