"""Commands and terminals, as every Store keeps them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from skerry.model.command import Command, CommandCause, CommandFilter, CommandKind, CommandStatus, Exit, TerminalSize
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import (
    CommandId,
    new_sandbox_id,
)
from skerry.model.lifecycle import Event
from skerry.model.request import Once
from skerry.seams import Store
from skerry.testing.store_suite.makers import NOW, add_account, add_running, add_sandbox, command_of


class CommandsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_a_command_comes_back_as_it_was_given(self, store: Store) -> None:
        command = command_of(await add_running(store, await add_account(store)))
        await store.add_command(command)
        assert await store.get_command(command.id) == command

    async def test_an_unknown_command_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.get_command(CommandId("cmd_none"))
        with pytest.raises(NotFound):
            await store.finish_command(
                CommandId("cmd_none"),
                status=CommandStatus.COMPLETED,
                exit=Exit(0, None, False, 0, 1),
                at=NOW,
            )

    @pytest.mark.parametrize(
        ("status", "end"),
        [
            (CommandStatus.COMPLETED, Exit(5, None, False, 2**40, 17)),
            (CommandStatus.FAILED, Exit(None, 9, False, 3, 4, CommandCause.OOM, "killed")),
            (CommandStatus.TIMEOUT, Exit(None, 9, True, 0, 1000)),
        ],
    )
    async def test_an_ended_command_keeps_how_it_ended(self, store: Store, status: CommandStatus, end: Exit) -> None:
        command = command_of(await add_running(store, await add_account(store)))
        await store.add_command(command)
        ended = await store.finish_command(command.id, status=status, exit=end, at=NOW)
        assert ended == replace(command, status=status, exit=end, completed_at=NOW)
        assert await store.get_command(command.id) == ended

    async def test_the_first_end_of_a_command_stands(self, store: Store) -> None:
        command = command_of(await add_running(store, await add_account(store)))
        await store.add_command(command)
        first, second = Exit(0, None, False, 1, 1), Exit(None, 9, False, 2, 2)
        await store.finish_command(command.id, status=CommandStatus.COMPLETED, exit=first, at=NOW)
        again = await store.finish_command(command.id, status=CommandStatus.FAILED, exit=second, at=NOW)
        assert (again.status, again.exit) == (CommandStatus.COMPLETED, first)

    async def test_commands_are_listed_newest_first_by_sandbox_and_by_running(self, store: Store) -> None:
        account = await add_account(store)
        here, there = await add_running(store, account), await add_running(store, account)
        older, newer, other = command_of(here), command_of(here), command_of(there)
        for command in (older, newer, other):
            await store.add_command(command)
        end = Exit(0, None, False, 0, 1)
        ended = await store.finish_command(older.id, status=CommandStatus.COMPLETED, exit=end, at=NOW)
        assert list(await store.list_commands(sandbox_id=here.id)) == [newer, ended]
        assert list(await store.list_commands(sandbox_id=here.id, running=True)) == [newer]
        assert list(await store.list_commands(running=False)) == [ended]
        assert list(await store.list_commands(limit=1)) == [other]

    async def test_commands_are_listed_page_by_page_by_status_and_by_kind(self, store: Store) -> None:
        here = await add_running(store, await add_account(store))
        first, second = command_of(here), replace(command_of(here), kind=CommandKind.STARTUP)
        third = command_of(here)
        for command in (first, second, third):
            await store.add_command(command)
        end = Exit(0, None, False, 0, 1)
        ended = await store.finish_command(first.id, status=CommandStatus.COMPLETED, exit=end, at=NOW)

        async def listed(**where: Any) -> list[Command]:
            return list(await store.list_commands(sandbox_id=here.id, where=CommandFilter(**where)))

        assert await listed(before=third.id) == [second, ended]
        assert await listed(before=first.id) == []
        assert await listed(statuses=[CommandStatus.COMPLETED, CommandStatus.TIMEOUT]) == [ended]
        assert await listed(kinds=[CommandKind.STARTUP]) == [second]
        assert await listed(kinds=[CommandKind.COMMAND], before=third.id) == [ended]

    async def test_a_sandbox_is_busy_exactly_while_a_command_runs(self, store: Store) -> None:
        account = await add_account(store)
        busy, idle = await add_running(store, account), await add_running(store, account)
        command = command_of(busy)
        await store.add_command(command)
        assert await store.busy_sandboxes([busy.id, idle.id]) == {busy.id}
        assert await store.busy_sandboxes([idle.id]) == set()
        end = Exit(0, None, False, 0, 1)
        await store.finish_command(command.id, status=CommandStatus.COMPLETED, exit=end, at=NOW)
        assert await store.busy_sandboxes([busy.id]) == set()

    async def test_terminals_are_listed_apart_keep_their_size_and_make_nothing_busy(self, store: Store) -> None:
        sandbox = await add_running(store, await add_account(store))
        terminal = replace(
            command_of(sandbox),
            timeout_s=None,
            kind=CommandKind.TERMINAL,
            takes_input=True,
            terminal=TerminalSize(80, 24),
            name="one",
        )
        other = replace(command_of(sandbox), takes_input=True)
        for command in (terminal, other):
            await store.add_command(command)
        assert list(await store.list_commands(sandbox_id=sandbox.id, terminals=True)) == [terminal]
        assert list(await store.list_commands(sandbox_id=sandbox.id, terminals=False)) == [other]
        await store.resize_terminal(terminal.id, TerminalSize(132, 43))
        await store.resize_terminal(other.id, TerminalSize(132, 43))
        assert (await store.get_command(terminal.id)).terminal == TerminalSize(132, 43)
        assert await store.get_command(other.id) == other
        end = Exit(0, None, False, 0, 1)
        await store.finish_command(other.id, status=CommandStatus.COMPLETED, exit=end, at=NOW)
        assert await store.busy_sandboxes([sandbox.id]) == set()
        another = await add_running(store, await add_account(store, "two"))
        assert await store.busy_sandboxes([sandbox.id, another.id]) == set()

    async def test_a_command_is_given_to_a_sandbox_that_runs_and_to_no_other(self, store: Store) -> None:
        account = await add_account(store)
        made = await add_sandbox(store, account)
        stopping = await store.transition(await add_running(store, account), Event.STOP)
        for sandbox in (made, stopping, replace(made, id=new_sandbox_id())):
            with pytest.raises(Conflict) as refused:
                await store.add_command(command_of(sandbox), Once("k", "f"))
            assert refused.value.code.startswith("sandbox_")
            assert await store.find_request(account.id, Once("k", "f")) is None
        assert list(await store.list_commands()) == []

    async def test_of_a_stop_and_a_command_at_once_one_loses(self, store: Store) -> None:
        running = await add_running(store, await add_account(store))
        calls = [store.add_command(command_of(running)), store.transition(running, Event.STOP, unless_busy=True)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        (lost,) = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
        busy = await store.busy_sandboxes([running.id])
        assert lost.code == ("sandbox_busy" if busy else "sandbox_stopping")

    async def test_what_was_made_for_a_request_is_found_though_its_sandbox_was_stopped(self, store: Store) -> None:
        running = await add_running(store, await add_account(store))
        first = command_of(running)
        await store.add_command(first, Once("k", "f"))
        await store.transition(running, Event.STOP)
        assert await store.add_command(command_of(running), Once("k", "f")) == first.id
