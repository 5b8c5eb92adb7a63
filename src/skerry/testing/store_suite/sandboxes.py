"""Sandboxes and their moves, as every Store keeps them."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from skerry.model.command import CommandKind
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import (
    SandboxId,
    new_sandbox_id,
)
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Change, Filter, Sandbox
from skerry.seams import Store
from skerry.testing.store_suite.makers import (
    NOW,
    PLACEMENT,
    add_account,
    add_running,
    add_sandbox,
    archive_of,
    command_of,
    sandbox_of,
)


class SandboxesSuite:
    """Give it a `store` fixture; the store holds nothing yet."""

    async def test_a_change_replaces_what_it_gives(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store), {"old": 1})
        renamed = await store.change_sandbox(sandbox.id, Change(name="new"))
        assert renamed == replace(sandbox, name="new", updated_at=renamed.updated_at)
        changed = await store.change_sandbox(sandbox.id, Change(name="", metadata={"m": "2"}, env={"B": "ß"}))
        assert (changed.name, changed.metadata, dict(changed.env)) == (None, {"m": "2"}, {"B": "ß"})
        assert await store.get_sandbox(sandbox.id) == changed
        assert list(await store.list_sandboxes(where=Filter(metadata={"m": "2"}))) == [changed]
        assert list(await store.list_sandboxes(where=Filter(metadata={"old": None}))) == []
        with pytest.raises(NotFound):
            await store.change_sandbox(SandboxId("sbx_none"), Change())

    async def test_a_change_is_refused_in_another_state_than_asked_for(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        with pytest.raises(Conflict) as refused:
            await store.change_sandbox(sandbox.id, Change(env={}), states=[State.RUNNING])
        assert refused.value.code == "sandbox_creating"
        assert await store.get_sandbox(sandbox.id) == sandbox

    async def test_a_destroyed_sandbox_has_no_env_any_more(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        destroying = await store.transition(sandbox, Event.DESTROY)
        assert dict(destroying.env) == dict(sandbox.env) != {}
        assert dict((await store.transition(destroying, Event.GONE)).env) == {}
        assert dict((await store.get_sandbox(sandbox.id)).env) == {}

    async def test_a_sandbox_comes_back_as_it_was_given(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store), {"n": 1, "deep": {"x": [None]}})
        assert await store.get_sandbox(sandbox.id) == sandbox

    async def test_an_unknown_sandbox_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.get_sandbox(SandboxId("sbx_none"))

    async def test_a_transition_moves_the_record_and_keeps_the_rest(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        moved = await store.transition(sandbox, Event.CREATED, placement=PLACEMENT)
        assert moved == replace(
            sandbox, state=State.RUNNING, runtime="crun", template_digest="sha256:1", updated_at=moved.updated_at
        )
        assert await store.get_sandbox(sandbox.id) == moved

    async def test_a_failure_keeps_its_cause(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        failed = await store.transition(sandbox, Event.BROKE, cause=Cause.OOM, detail="too much")
        assert (failed.state, failed.cause, failed.detail) == (State.FAILED, Cause.OOM, "too much")
        destroying = await store.transition(failed, Event.DESTROY)
        assert (destroying.cause, destroying.detail) == (Cause.OOM, "too much")

    async def test_a_move_that_the_table_does_not_have_is_a_conflict(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        with pytest.raises(Conflict):
            await store.transition(sandbox, Event.GONE)
        assert await store.get_sandbox(sandbox.id) == sandbox

    async def test_a_stale_record_cannot_move_anything(self, store: Store) -> None:
        stale = await add_sandbox(store, await add_account(store))
        moved = await store.transition(stale, Event.CREATED, placement=PLACEMENT)
        with pytest.raises(Conflict) as refused:
            await store.transition(stale, Event.DESTROY)
        assert refused.value.code == "sandbox_running"
        assert await store.get_sandbox(stale.id) == moved

    async def test_an_older_generation_cannot_move_anything(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        with pytest.raises(Conflict):
            await store.transition(replace(sandbox, generation=0), Event.CREATED, placement=PLACEMENT)

    async def test_of_many_equal_transitions_at_once_exactly_one_wins(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        attempts = [store.transition(sandbox, Event.DESTROY) for _ in range(10)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, Sandbox) for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 9

    async def test_a_transition_of_an_unknown_sandbox_is_not_found(self, store: Store) -> None:
        account = await add_account(store)
        with pytest.raises(NotFound):
            await store.transition(sandbox_of(account), Event.DESTROY)

    async def test_a_stopped_sandbox_has_its_archive_and_comes_back_one_generation_later(self, store: Store) -> None:
        running = await add_running(store, await add_account(store))
        stopping = await store.transition(running, Event.STOP, cause=Cause.HOST_RESTART, detail="It was restarted.")
        assert (stopping.cause, stopping.detail) == (Cause.HOST_RESTART, "It was restarted.")
        archive = archive_of()
        stopped = await store.transition(stopping, Event.ARCHIVED, archive=archive)
        assert (stopped.state, stopped.archive, stopped.detail) == (State.STOPPED, archive, "")
        assert stopped.cause is Cause.HOST_RESTART
        resuming = await store.transition(stopped, Event.RESUME)
        assert (resuming.generation, resuming.cause, resuming.detail) == (2, None, "")
        assert resuming.archive == archive and resuming.active_at == resuming.updated_at
        again = await store.transition(resuming, Event.CREATED, placement=PLACEMENT)
        assert await store.get_sandbox(running.id) == again
        with pytest.raises(Conflict):
            await store.transition(stopping, Event.ARCHIVED)

    async def test_a_stop_and_a_resume_begin_without_an_earlier_cause(self, store: Store) -> None:
        account = await add_account(store)
        for event in (Event.STOP, Event.RESUME):
            running = await add_running(store, account)
            failed = await store.transition(running, Event.BROKE, cause=Cause.OOM, detail="too much")
            moved = await store.transition(failed, event)
            assert (moved.cause, moved.detail) == (None, "")

    async def test_a_move_that_explains_itself_without_a_cause_keeps_the_cause(self, store: Store) -> None:
        running = await add_running(store, await add_account(store))
        stopping = await store.transition(running, Event.STOP, cause=Cause.HOST_RESTART)
        resuming = await store.transition(stopping, Event.RESUME)
        back = await store.transition(resuming, Event.BROKE, detail="No room.")
        assert (back.state, back.cause, back.detail) == (State.STOPPING, None, "No room.")

    async def test_a_busy_sandbox_is_not_moved_unless_that_is_said(self, store: Store) -> None:
        account = await add_account(store)
        running, other = await add_running(store, account), await add_running(store, account)
        command = command_of(running)
        await store.add_command(command)
        await store.add_command(replace(command_of(other), kind=CommandKind.STARTUP))
        with pytest.raises(Conflict) as refused:
            await store.transition(running, Event.STOP, unless_busy=True)
        assert refused.value.code == "sandbox_busy"
        assert await store.get_sandbox(running.id) == running
        assert (await store.transition(other, Event.STOP, unless_busy=True)).state is State.STOPPING
        assert (await store.transition(running, Event.STOP)).state is State.STOPPING

    async def test_a_destroyed_sandbox_has_no_archive_any_more(self, store: Store) -> None:
        account = await add_account(store)
        stopping = await store.transition(await add_running(store, account), Event.STOP)
        archive = archive_of()
        stopped = await store.transition(stopping, Event.ARCHIVED, archive=archive)
        assert await store.archives_wanted(account.id) == {archive.id}
        destroying = await store.transition(stopped, Event.DESTROY)
        assert await store.archives_wanted(account.id) == {archive.id}
        assert (await store.transition(destroying, Event.GONE)).archive is None
        assert await store.archives_wanted(account.id) == set()

    async def test_the_latest_use_of_a_sandbox_is_kept(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        for at in (NOW, NOW - timedelta(seconds=1)):
            await store.touch_sandboxes({sandbox.id: at, new_sandbox_id(): at})
        await store.touch_sandboxes({})
        assert await store.get_sandbox(sandbox.id) == replace(sandbox, active_at=NOW)

    async def test_why_it_is_not_stored_yet_can_be_told_while_it_is_stopping(self, store: Store) -> None:
        stopping = await store.transition(await add_running(store, await add_account(store)), Event.STOP)
        told = await store.change_sandbox(stopping.id, Change(detail="It is away."), states=[State.STOPPING])
        assert told.detail == "It is away."
        assert (await store.change_sandbox(stopping.id, Change(detail=""))).detail == ""
