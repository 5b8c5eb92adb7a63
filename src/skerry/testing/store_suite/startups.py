"""Startup commands and their runs, as every Store keeps them."""

from dataclasses import replace

import pytest

from skerry.model.account import Account
from skerry.model.command import CommandKind
from skerry.model.errors import Conflict
from skerry.model.lifecycle import Event
from skerry.model.sandbox import Sandbox
from skerry.model.startup import StartupRun
from skerry.seams import Store
from skerry.testing.store_suite.makers import PLACEMENT, add_account, add_running, add_sandbox, command_of, sandbox_of


class StartupsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_a_startup_is_a_command_and_no_activity(self, store: Store) -> None:
        sandbox = await add_running(store, await add_account(store))
        command = replace(command_of(sandbox), kind=CommandKind.STARTUP, timeout_s=None)
        assert await store.get_startup(sandbox.id) is None
        assert await store.begin_startup(command, 1, replaces=None)
        run = StartupRun(sandbox.id, 1, command.id, command.started_at)
        assert await store.get_startup(sandbox.id) == run
        assert await store.get_command(command.id) == command
        assert await store.busy_sandboxes([sandbox.id]) == set()
        assert list(await store.list_commands(running=True)) == [command]

    async def test_of_startups_that_replace_the_same_run_one_is_recorded(self, store: Store) -> None:
        sandbox = await add_running(store, await add_account(store))
        first, second, third = (replace(command_of(sandbox), kind=CommandKind.STARTUP) for _ in range(3))
        assert await store.begin_startup(first, 1, replaces=None)
        assert not await store.begin_startup(second, 1, replaces=None)
        assert await store.begin_startup(third, 1, replaces=await store.get_startup(sandbox.id))
        assert {c.id for c in await store.list_commands()} == {first.id, third.id}

    async def test_due_are_running_sandboxes_that_were_not_started_up(self, store: Store) -> None:
        account = await add_account(store)
        sandbox = replace(sandbox_of(account), startup_command="up")
        plain = await add_sandbox(store, account)
        await store.add_sandbox(sandbox)
        assert list(await store.due_startups()) == []
        due = await store.transition(sandbox, Event.CREATED, placement=PLACEMENT)
        await store.transition(plain, Event.CREATED, placement=PLACEMENT)
        assert list(await store.due_startups()) == [due]
        changed = await store.set_startup_command(due, "other")
        assert changed.startup_command == "other"
        assert list(await store.due_startups()) == [changed]
        assert await store.begin_startup(command_of(due), due.generation, replaces=None)
        assert list(await store.due_startups()) == []

    async def test_a_command_that_is_set_on_a_running_sandbox_is_not_due(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        running = await store.transition(sandbox, Event.CREATED, placement=PLACEMENT)
        assert (await store.set_startup_command(running, "later")).startup_command == "later"
        assert list(await store.due_startups()) == []
        assert await store.get_startup(sandbox.id) == StartupRun(sandbox.id, 1)
        assert (await store.set_startup_command(running, None)).startup_command is None

    async def test_due_is_also_what_came_up_with_files_until_these_were_looked_at(self, store: Store) -> None:
        account = await add_account(store)
        empty = await add_running(store, account)
        seeded = replace(sandbox_of(account), source=empty.id)
        await store.add_sandbox(seeded)
        seeded = await store.transition(seeded, Event.CREATED, placement=PLACEMENT)
        resumed = await add_resumed(store, account)
        assert {sandbox.id for sandbox in await store.due_startups()} == {seeded.id, resumed.id}
        for sandbox in (seeded, resumed):
            await store.skip_startup(sandbox, replaces=None)
        assert list(await store.due_startups()) == []
        assert await store.get_startup(resumed.id) == StartupRun(resumed.id, 2)

    async def test_a_command_that_is_set_before_the_files_were_looked_at_is_due(self, store: Store) -> None:
        resumed = await add_resumed(store, await add_account(store))
        changed = await store.set_startup_command(resumed, "up")
        assert list(await store.due_startups()) == [changed]

    async def test_what_was_begun_meanwhile_is_not_skipped(self, store: Store) -> None:
        resumed = await add_resumed(store, await add_account(store))
        command = replace(command_of(resumed), kind=CommandKind.STARTUP)
        assert await store.begin_startup(command, resumed.generation, replaces=None)
        await store.skip_startup(resumed, replaces=None)
        run = await store.get_startup(resumed.id)
        assert run is not None and run.command_id == command.id

    async def test_a_startup_of_another_generation_or_of_a_sandbox_that_does_not_run_is_not_begun(
        self, store: Store
    ) -> None:
        resumed = await add_resumed(store, await add_account(store))
        assert not await store.begin_startup(command_of(resumed), 1, replaces=None)
        await store.transition(resumed, Event.STOP)
        with pytest.raises(Conflict) as refused:
            await store.begin_startup(command_of(resumed), 2, replaces=None)
        assert refused.value.code == "sandbox_stopping"
        assert list(await store.list_commands()) == []


async def add_resumed(store: Store, account: Account) -> Sandbox:
    stopping = await store.transition(await add_running(store, account), Event.STOP)
    return await store.transition(await store.transition(stopping, Event.RESUME), Event.CREATED)
