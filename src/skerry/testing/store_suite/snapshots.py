"""Snapshots and vaults, as every Store keeps them."""

import asyncio
from dataclasses import replace

import pytest

from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, SandboxId, new_snapshot_id
from skerry.model.lifecycle import Event
from skerry.model.request import Once
from skerry.model.snapshot import SnapshotState
from skerry.seams import Store
from skerry.testing.store_suite.makers import add_account, add_running, add_sandbox, archive_of, snapshot_of


class SnapshotsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_a_vault_is_made_once_and_has_a_key_of_its_own(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        assert await store.list_vaults() == {}
        first, *others = await asyncio.gather(*(store.vault(one.id) for _ in range(5)))
        assert all(other == first for other in others)
        assert len(first.key) == 32 and first.id.startswith("vlt_")
        second = await store.vault(two.id)
        assert second.id != first.id and second.key != first.key
        assert await store.list_vaults() == {one.id: first, two.id: second}
        assert first.key.hex() not in repr(first)
        with pytest.raises(NotFound):
            await store.vault(AccountId("acct_nobody"))

    async def test_wanted_are_the_archives_of_what_there_is(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        stopping = await store.transition(await add_running(store, one), Event.STOP)
        kept, taken, other = archive_of(), archive_of(), archive_of()
        await store.transition(stopping, Event.ARCHIVED, archive=kept)
        snapshot = replace(snapshot_of(stopping), archive=taken)
        await store.add_snapshot(snapshot)
        await store.add_snapshot(replace(snapshot_of(stopping), archive=taken))
        await store.add_snapshot(replace(snapshot_of(await add_sandbox(store, two)), archive=other))
        assert await store.archives_wanted(one.id) == {kept.id, taken.id}
        assert await store.archives_wanted(two.id) == {other.id}
        await store.move_snapshot(snapshot, SnapshotState.DELETING)
        assert await store.archives_wanted(one.id) == {kept.id, taken.id}

    async def test_a_snapshot_comes_back_as_it_was_given(self, store: Store) -> None:
        snapshot = snapshot_of(await add_sandbox(store, await add_account(store)))
        whole = replace(snapshot_of(await store.get_sandbox(snapshot.source_sandbox_id)), name=None)
        whole = replace(whole, archive=archive_of(), size_bytes=2**40, detail="soon", startup_command=None)
        for each in (snapshot, whole):
            assert await store.add_snapshot(each) == each.id
            assert await store.get_snapshot(each.id) == each
        with pytest.raises(NotFound):
            await store.get_snapshot(new_snapshot_id())

    async def test_an_account_has_as_many_snapshots_as_it_may(self, store: Store) -> None:
        box = await add_sandbox(store, await add_account(store))
        other = await add_sandbox(store, await add_account(store, "two"))
        first, second, third, fourth = (snapshot_of(box) for _ in range(4))
        await store.add_snapshot(first, Once("k", "f"), most=2)
        results = await asyncio.gather(
            *(store.add_snapshot(each, most=2) for each in (second, third)), return_exceptions=True
        )
        (refused,) = [each for each in results if isinstance(each, Conflict)]
        assert refused.code == "too_many_snapshots" and len(await store.list_snapshots()) == 2
        # The same request again is answered; a refused one has not used its key up.
        assert await store.add_snapshot(snapshot_of(box), Once("k", "f"), most=2) == first.id
        with pytest.raises(Conflict):
            await store.add_snapshot(fourth, Once("k2", "f"), most=2)
        await store.add_snapshot(snapshot_of(other), most=2)
        await store.remove_snapshot(first.id)
        assert await store.add_snapshot(fourth, Once("k2", "f"), most=2) == fourth.id

    async def test_a_snapshot_moves_if_it_is_where_it_was(self, store: Store) -> None:
        snapshot = snapshot_of(await add_sandbox(store, await add_account(store)))
        await store.add_snapshot(snapshot)
        ready = await store.move_snapshot(snapshot, SnapshotState.READY, size_bytes=7, detail="not yet")
        assert ready == replace(
            snapshot, state=SnapshotState.READY, size_bytes=7, detail="not yet", updated_at=ready.updated_at
        )
        archive = archive_of()
        stored = await store.move_snapshot(ready, SnapshotState.READY, archive=archive, detail="")
        assert (stored.archive, stored.size_bytes, stored.detail) == (archive, 7, "")
        with pytest.raises(Conflict) as refused:
            await store.move_snapshot(snapshot, SnapshotState.DELETING)
        assert refused.value.code == "snapshot_ready"
        assert await store.get_snapshot(snapshot.id) == stored

    async def test_a_removed_snapshot_is_gone_and_cannot_move(self, store: Store) -> None:
        snapshot = snapshot_of(await add_sandbox(store, await add_account(store)))
        await store.add_snapshot(snapshot)
        for _ in range(2):
            await store.remove_snapshot(snapshot.id)
        with pytest.raises(NotFound):
            await store.move_snapshot(snapshot, SnapshotState.READY)
        assert list(await store.list_snapshots()) == []

    async def test_snapshots_are_listed_newest_first_page_by_page_by_source_name_and_state(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        here, there = await add_sandbox(store, one), await add_sandbox(store, one)
        first, second, third = snapshot_of(here), replace(snapshot_of(here), name="other"), snapshot_of(there)
        foreign = snapshot_of(await add_sandbox(store, two))
        for each in (first, second, third, foreign):
            await store.add_snapshot(each)
        ready = await store.move_snapshot(second, SnapshotState.READY)
        assert list(await store.list_snapshots()) == [foreign, third, ready, first]
        assert list(await store.list_snapshots(account_id=one.id, limit=2)) == [third, ready]
        assert list(await store.list_snapshots(account_id=one.id, before=ready.id)) == [first]
        assert list(await store.list_snapshots(source=here.id)) == [ready, first]
        assert list(await store.list_snapshots(name="other")) == [ready]
        assert list(await store.list_snapshots(states=[SnapshotState.CREATING], source=here.id)) == [first]
        assert list(await store.list_snapshots(source=SandboxId("sbx_none"))) == []
