"""Shell sessions, as every Store keeps them."""

import asyncio
from dataclasses import replace

import pytest

from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import (
    new_command_id,
    new_shell_id,
)
from skerry.model.shell import MOST_SHELLS, ShellState
from skerry.seams import Store
from skerry.testing.store_suite.makers import NOW, add_account, add_sandbox, shell_of


class ShellsSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_a_sandbox_has_so_many_sessions_however_many_are_made_at_once(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        sessions = [shell_of(sandbox) for _ in range(MOST_SHELLS + 8)]
        made = await asyncio.gather(*(store.add_shell(session) for session in sessions), return_exceptions=True)
        refused = [error for error in made if error is not None]
        assert len(refused) == 8
        assert all(isinstance(error, Conflict) and error.code == "too_many_sessions" for error in refused)
        kept = list(await store.list_shells(sandbox.id))
        assert len(kept) == MOST_SHELLS
        await store.delete_shell(kept[0].id)
        await store.add_shell(shell_of(sandbox))
        await store.add_shell(shell_of(await add_sandbox(store, await store.get_account(sandbox.account_id))))

    async def test_a_session_comes_back_as_it_was(self, store: Store) -> None:
        session = shell_of(await add_sandbox(store, await add_account(store)))
        await store.add_shell(session)
        assert await store.get_shell(session.id) == session
        second = replace(shell_of(await store.get_sandbox(session.sandbox_id)), state=ShellState())
        await store.add_shell(second)
        assert list(await store.list_shells(session.sandbox_id)) == [session, second]
        await store.delete_shell(session.id)
        await store.delete_shell(session.id)
        with pytest.raises(NotFound):
            await store.get_shell(session.id)
        await store.delete_shells(session.sandbox_id)
        assert list(await store.list_shells(session.sandbox_id)) == []

    async def test_a_session_is_one_commands_at_a_time(self, store: Store) -> None:
        session = shell_of(await add_sandbox(store, await add_account(store)))
        await store.add_shell(session)
        first, second = new_command_id(), new_command_id()
        assert await store.claim_shell(session.id, first, "t", NOW)
        assert not await store.claim_shell(session.id, second, "t", NOW)
        held = await store.get_shell(session.id)
        assert (held.command_id, held.token) == (first, "t")
        await store.release_shell(session.id, second, ShellState("/no"))
        assert await store.get_shell(session.id) == held
        await store.release_shell(session.id, first, ShellState("/new"))
        free = await store.get_shell(session.id)
        assert (free.command_id, free.token, free.state) == (None, None, ShellState("/new"))
        assert await store.claim_shell(session.id, second, "u", NOW)
        await store.release_shell(session.id, second, None)
        assert (await store.get_shell(session.id)).state == ShellState("/new")
        assert not await store.claim_shell(new_shell_id(), first, "t", NOW)
