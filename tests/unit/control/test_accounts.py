"""Keys and the first account: a secret exists once, in its owner's hands."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from skerry.control import accounts
from skerry.model.account import hash_secret
from skerry.model.errors import NotFound, Unauthorized
from skerry.testing.memory_store import MemoryStore
from skerry.testing.store_suite import add_account

from .conftest import World


@pytest.fixture
def empty(world: World) -> World:
    """A new installation: nobody is there yet."""
    store = MemoryStore(world.clock)
    return replace(world, store=store, deps=replace(world.deps, store=store))


async def test_x8_the_first_start_makes_an_account_without_limits_and_leaves_its_key(
    empty: World, tmp_path: Path
) -> None:
    key_file = tmp_path / "api" / "key"
    account = await accounts.bootstrap(empty.deps, key_file)
    secret = key_file.read_text().strip()
    assert account.plan == "unlimited"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert await accounts.authenticate(empty.deps, secret) == account.id
    (key,) = await empty.store.list_keys(account.id)
    assert key.secret_hash == hash_secret(secret)
    assert secret.encode() not in key.secret_hash


async def test_a_second_start_touches_nothing(empty: World, tmp_path: Path) -> None:
    account = await accounts.bootstrap(empty.deps, tmp_path / "key")
    before = (tmp_path / "key").read_text()
    assert await accounts.bootstrap(empty.deps, tmp_path / "key") == account
    assert (tmp_path / "key").read_text() == before


async def test_a_key_file_is_never_written_through_a_link(empty: World, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("safe")
    (tmp_path / "key.new").symlink_to(tmp_path / "victim")
    (tmp_path / "key").symlink_to(tmp_path / "victim")
    await accounts.bootstrap(empty.deps, tmp_path / "key")
    assert (tmp_path / "victim").read_text() == "safe"
    assert not (tmp_path / "key").is_symlink()


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


async def test_another_accounts_key_cannot_be_deleted(world: World) -> None:
    other = await add_account(world.store, "other")
    key, secret = await accounts.create_key(world.deps, world.account.id, "ci")
    with pytest.raises(NotFound):
        await accounts.delete_key(world.deps, other.id, key.id)
    assert await accounts.authenticate(world.deps, secret) == world.account.id
