"""Requests that are sent again, as every Store keeps them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from skerry.model.errors import Conflict
from skerry.model.request import Once
from skerry.seams import Store
from skerry.testing.store_suite.makers import (
    NOW,
    add_account,
    add_running,
    add_sandbox,
    command_of,
    sandbox_of,
    snapshot_of,
)


class RequestsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_equal_requests_add_one_sandbox_and_another_one_under_their_key_is_refused(
        self, store: Store
    ) -> None:
        account, other = await add_account(store), await add_account(store, "two")
        first, second = sandbox_of(account), sandbox_of(account)
        assert await store.find_request(account.id, Once("k", "f")) is None
        assert await store.add_sandbox(first, Once("k", "f")) == first.id
        assert await store.add_sandbox(second, Once("k", "f")) == first.id
        assert await store.find_request(account.id, Once("k", "f")) == first.id
        with pytest.raises(Conflict) as refused:
            await store.add_sandbox(second, Once("k", "g"))
        assert refused.value.code == "idempotency_mismatch"
        assert list(await store.list_sandboxes()) == [first]
        third = sandbox_of(other)
        assert await store.add_sandbox(third, Once("k", "g")) == third.id

    async def test_what_came_to_nothing_gives_its_key_to_one_new_attempt(self, store: Store) -> None:
        account = await add_account(store)
        first, second, third = (sandbox_of(account) for _ in range(3))
        await store.add_sandbox(first, Once("k", "f"))
        again = Once("k", "f", instead_of=first.id)
        assert await store.add_sandbox(second, again) == second.id
        assert await store.add_sandbox(third, again) == second.id

    async def test_equal_requests_add_one_command(self, store: Store) -> None:
        sandbox = await add_running(store, await add_account(store))
        first, second = command_of(sandbox), command_of(sandbox)
        assert await store.add_command(first, Once("k", "f")) == first.id
        assert await store.add_command(second, Once("k", "f")) == first.id
        assert list(await store.list_commands()) == [first]

    async def test_requests_of_before_a_time_are_forgotten(self, store: Store) -> None:
        account = await add_account(store)
        old, new = sandbox_of(account), replace(sandbox_of(account), created_at=NOW + timedelta(seconds=1))
        await store.add_sandbox(old, Once("old", "f"))
        await store.add_sandbox(new, Once("new", "f"))
        await store.forget_requests(NOW + timedelta(seconds=1))
        assert await store.find_request(account.id, Once("old", "g")) is None
        assert await store.find_request(account.id, Once("new", "f")) == new.id

    async def test_equal_requests_add_one_snapshot(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        first, second = snapshot_of(sandbox), snapshot_of(sandbox)
        assert await store.add_snapshot(first, Once("k", "f")) == first.id
        assert await store.add_snapshot(second, Once("k", "f")) == first.id
        assert list(await store.list_snapshots()) == [first]
