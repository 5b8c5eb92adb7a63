"""Keys and the first account: a secret exists once, in its owner's hands."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from skerry.control import accounts, reconcile
from skerry.control.keys import NOTE_EVERY
from skerry.model.account import KEY_PREFIX, ApiKey, hash_secret, new_secret
from skerry.model.errors import Conflict, NotFound, Unauthorized, Unavailable
from skerry.model.ids import AccountId
from skerry.testing.memory_store import MemoryStore
from skerry.testing.store_suite import add_account

from .conftest import World, until


@pytest.fixture
def empty(world: World) -> World:
    """A new installation: nobody is there yet."""
    store = MemoryStore(world.clock)
    return replace(world, store=store, deps=replace(world.deps, store=store))


async def test_x8_the_first_start_makes_an_account_without_limits(empty: World) -> None:
    secret = new_secret()
    account = await accounts.bootstrap(empty.deps, hash_secret(secret))
    assert account.plan == "unlimited"
    assert await accounts.authenticate(empty.deps, secret) == account.id
    (key,) = await empty.store.list_keys(account.id)
    assert key.secret_hash == hash_secret(secret)
    assert secret.encode() not in key.secret_hash


async def test_a_second_start_touches_nothing(empty: World) -> None:
    account = await accounts.bootstrap(empty.deps, hash_secret("one"))
    assert await accounts.bootstrap(empty.deps, hash_secret("one")) == account
    assert len(await empty.store.list_keys(account.id)) == 1


async def test_a_new_key_file_opens_the_old_account(empty: World) -> None:
    account = await accounts.bootstrap(empty.deps, hash_secret("lost"))
    assert await accounts.bootstrap(empty.deps, hash_secret("new")) == account
    assert await accounts.authenticate(empty.deps, "new") == account.id


async def test_a_wrong_key_is_refused(world: World) -> None:
    for wrong in ("", "skerry_live_x", "\udcff", "x" * 100_000):
        with pytest.raises(Unauthorized):
            await accounts.authenticate(world.deps, wrong)


async def test_a_deleted_key_ends_at_once(world: World) -> None:
    key, secret = await accounts.create_key(world.deps, world.account.id, "ci")
    assert await accounts.authenticate(world.deps, secret) == world.account.id
    await accounts.delete_key(world.deps, world.account.id, key.id)
    with pytest.raises(Unauthorized):
        await accounts.authenticate(world.deps, secret)


async def test_a_key_that_another_process_deleted_ends_within_two_seconds(world: World) -> None:
    key, secret = await accounts.create_key(world.deps, world.account.id, "ci")
    await accounts.authenticate(world.deps, secret)
    await world.store.delete_key(world.account.id, key.id)
    world.clock.advance(2)
    with pytest.raises(Unauthorized):
        await accounts.authenticate(world.deps, secret)


async def test_whoever_is_attached_hears_of_a_key_that_another_process_deleted(world: World) -> None:
    deps = replace(world.deps, sole=False)
    key, _ = await accounts.create_key(deps, world.account.id, "ci")
    waiting = asyncio.ensure_future(accounts.key_deleted(deps, world.account.id))
    for _ in range(2):  # it looks again and again
        await until(lambda: world.clock.sleepers == 1)
        world.clock.advance(accounts.LOOK_EVERY_S)
        await until(lambda: world.clock.sleepers == 1)
        assert not waiting.done()
    later, _ = await accounts.create_key(deps, world.account.id, "later")
    await world.store.delete_key(world.account.id, key.id)
    world.clock.advance(accounts.LOOK_EVERY_S)
    await asyncio.wait_for(waiting, 10)
    assert later.id in {key.id for key in await world.store.list_keys(world.account.id)}


async def test_a_key_that_was_deleted_elsewhere_just_after_it_opened_a_socket_is_missed_at_once(world: World) -> None:
    deps = replace(world.deps, sole=False)
    key, secret = await accounts.create_key(deps, world.account.id, "ci")
    await accounts.authenticate(deps, secret)
    await world.store.delete_key(world.account.id, key.id)
    await asyncio.wait_for(accounts.key_deleted(deps, world.account.id), 10)


async def test_who_waits_for_a_deleted_key_hears_of_one_deleted_here_at_once_and_survives_a_broken_store(
    world: World,
) -> None:
    class Broken(MemoryStore):
        broken = False

        async def list_keys(self, account_id: AccountId) -> Sequence[ApiKey]:
            if self.broken:
                raise Unavailable("The database is locked.")
            return await super().list_keys(account_id)

    store = Broken(world.clock)
    account = await add_account(store)
    deps = replace(world.deps, sole=False, store=store)
    key, _ = await accounts.create_key(deps, account.id, "ci")
    waiting = asyncio.ensure_future(accounts.key_deleted(deps, account.id))
    await until(lambda: world.clock.sleepers == 1)
    store.broken = True
    world.clock.advance(accounts.LOOK_EVERY_S)
    await until(lambda: world.clock.sleepers == 1)
    store.broken = False
    await accounts.delete_key(deps, account.id, key.id)
    await asyncio.wait_for(waiting, 10)
    assert world.clock.sleepers == 0


async def test_another_accounts_key_cannot_be_deleted(world: World) -> None:
    other = await add_account(world.store, "other")
    key, secret = await accounts.create_key(world.deps, world.account.id, "ci")
    with pytest.raises(NotFound):
        await accounts.delete_key(world.deps, other.id, key.id)
    assert await accounts.authenticate(world.deps, secret) == world.account.id


async def test_an_accounts_only_key_stays(world: World) -> None:
    (key,) = await accounts.list_keys(world.deps, world.account.id)
    with pytest.raises(Conflict) as refused:
        await accounts.delete_key(world.deps, world.account.id, key.id)
    assert refused.value.code == "last_key"


async def test_when_a_key_was_used_is_written_down_once_a_minute_at_most(world: World) -> None:
    key, secret = await accounts.create_key(world.deps, world.account.id, "ci")

    async def used() -> datetime | None:
        await accounts.authenticate(world.deps, secret)
        await reconcile.once(world.deps)
        found = {each.id: each.last_used_at for each in await accounts.list_keys(world.deps, world.account.id)}
        return found[key.id]

    first = world.clock.now()
    assert await used() == first
    for _ in range(11):
        world.clock.advance(5)
        assert await used() == first
    world.clock.advance(5)
    assert await used() == first + NOTE_EVERY


async def test_a_key_is_known_again_by_how_it_begins(world: World) -> None:
    key, secret = await accounts.create_key(world.deps, world.account.id, "ci")
    assert secret.startswith(key.hint) and len(key.hint) == len(KEY_PREFIX) + 4
