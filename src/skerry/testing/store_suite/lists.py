"""Lists of sandboxes, and counts over them, as every Store keeps them."""

from typing import Any

from skerry.model.ids import (
    SandboxId,
)
from skerry.model.lifecycle import Event, State
from skerry.model.sandbox import Change, Filter, Promised, Sandbox
from skerry.seams import Store
from skerry.testing.store_suite.makers import PLACEMENT, add_account, add_sandbox, command_of


class ListsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_lists_filter_by_name_beginning_of_the_id_entry_and_work(self, store: Store) -> None:
        account = await add_account(store)
        one = await store.change_sandbox((await add_sandbox(store, account, {"team": "a"})).id, Change(name="one"))
        busy = await store.transition(await add_sandbox(store, account, {"team": 5}), Event.CREATED)
        idle = await store.transition(await add_sandbox(store, account), Event.CREATED)
        await store.add_command(command_of(busy))

        async def found(**wanted: Any) -> list[Sandbox]:
            return list(await store.list_sandboxes(account_id=account.id, where=Filter(**wanted)))

        assert await found(name="one") == [one]
        assert await found(id_prefix=one.id[:-1]) == [one]
        assert await found(id_prefix="sbx_%") == []
        assert await found(metadata={"team": None}) == [busy, one]
        assert await found(busy=True) == [busy, one]
        assert await found(busy=False) == [idle, one]
        assert list(await store.list_sandboxes(states=[State.RUNNING], where=Filter(busy=True))) == [busy]

    async def test_what_was_promised_is_counted_by_state(self, store: Store) -> None:
        account, other = await add_account(store), await add_account(store, "two")
        running = [await store.transition(await add_sandbox(store, account), Event.CREATED) for _ in range(2)]
        await add_sandbox(store, account)
        await add_sandbox(store, other)
        gone = await store.transition(await add_sandbox(store, account), Event.DESTROY)
        await store.transition(gone, Event.GONE)
        found = {each.state: each for each in await store.promised(account.id)}
        assert found == {
            State.RUNNING: Promised(State.RUNNING, 2, 154, 2000, 20_480),
            State.CREATING: Promised(State.CREATING, 1, 77, 1000, 10_240),
        }
        for _ in range(2):
            await store.add_command(command_of(running[0]))
        assert await store.running_commands(account.id) == {running[0].id: 2}
        assert await store.running_commands(other.id) == {}

    async def test_what_there_is_is_counted_over_all_accounts(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        made = [await add_sandbox(store, account) for account in (one, one, two)]
        running = await store.transition(made[2], Event.CREATED, placement=PLACEMENT)
        await store.transition(await store.transition(made[0], Event.DESTROY), Event.GONE)
        await store.add_command(command_of(running))
        told = await store.population()
        assert told.sandboxes == {
            (State.CREATING, None, made[1].template): 1,
            (State.RUNNING, PLACEMENT.runtime, running.template): 1,
        }
        assert told.running_commands == 1

    async def test_lists_are_newest_first_and_page_by_the_last_id(self, store: Store) -> None:
        account = await add_account(store)
        made = [await add_sandbox(store, account) for _ in range(5)]
        newest_first = list(reversed(made))
        first = await store.list_sandboxes(account_id=account.id, limit=2)
        assert list(first) == newest_first[:2]
        assert list(await store.list_sandboxes(account_id=account.id, before=first[-1].id)) == newest_first[2:]
        assert list(await store.list_sandboxes(before=SandboxId("sbx_none"))) == []

    async def test_lists_show_one_account_or_all(self, store: Store) -> None:
        one, two = await add_account(store), await add_account(store, "two")
        mine = await add_sandbox(store, one)
        other = await add_sandbox(store, two)
        assert list(await store.list_sandboxes(account_id=one.id)) == [mine]
        assert list(await store.list_sandboxes()) == [other, mine]

    async def test_lists_filter_by_state(self, store: Store) -> None:
        account = await add_account(store)
        running = await store.transition(await add_sandbox(store, account), Event.CREATED, placement=PLACEMENT)
        creating = await add_sandbox(store, account)
        assert list(await store.list_sandboxes(states=[State.RUNNING])) == [running]
        assert list(await store.list_sandboxes(states=[State.CREATING, State.RUNNING])) == [creating, running]
        assert list(await store.list_sandboxes(states=[])) == []

    async def test_lists_filter_by_every_metadata_entry_given(self, store: Store) -> None:
        account = await add_account(store)
        odd = "k\"'%_.$[0] ✓"
        found = await add_sandbox(store, account, {odd: "v'\"%", "n": 1, "b": True, "list": ["x"]})
        await add_sandbox(store, account, {odd: "v'\"%", "n": 2})
        wanted = {odd: "v'\"%", "n": "1", "b": "true"}
        assert list(await store.list_sandboxes(where=Filter(metadata=wanted))) == [found]
        assert list(await store.list_sandboxes(where=Filter(metadata={"list": "x"}))) == []
        assert list(await store.list_sandboxes(where=Filter(metadata={odd: "v_"}))) == []
