"""What every Store does, as tests. Subclass `StoreSuite` and give it a `store` fixture; the store holds nothing yet."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skerry.model.account import Account, ApiKey, hash_secret, new_secret
from skerry.model.command import Command, CommandCause, CommandFilter, CommandKind, CommandStatus, Exit, TerminalSize
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import (
    AccountId,
    CommandId,
    SandboxId,
    new_account_id,
    new_command_id,
    new_key_id,
    new_project_id,
    new_sandbox_id,
    new_shell_id,
)
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Limits, NetworkMode, Placement, Promised, Sandbox
from skerry.model.shell import MOST_SHELLS, ShellSession, ShellState
from skerry.model.startup import StartupRun
from skerry.model.ticket import Ticket
from skerry.seams import Store

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PLACEMENT = Placement("crun", "sha256:1")


async def add_account(store: Store, name: str = "one") -> Account:
    account = Account(new_account_id(), name, "unlimited", new_project_id(), NOW)
    await store.add_account(account, ApiKey(new_key_id(), account.id, "first", hash_secret(new_secret()), NOW))
    return account


def sandbox_of(account: Account, metadata: dict[str, object] | None = None) -> Sandbox:
    return Sandbox(
        id=new_sandbox_id(),
        account_id=account.id,
        project_id=account.default_project_id,
        state=State.CREATING,
        generation=1,
        name="a name ✓",
        template="python",
        limits=Limits(memory_mb=77),
        timeout_s=9,
        network_mode=NetworkMode.NONE,
        created_at=NOW,
        updated_at=NOW,
        env={"A": "1\n2"},
        metadata=metadata or {},
        model={"any": ["thing"]},
    )


async def add_sandbox(store: Store, account: Account, metadata: dict[str, object] | None = None) -> Sandbox:
    sandbox = sandbox_of(account, metadata)
    await store.add_sandbox(sandbox)
    return sandbox


def command_of(sandbox: Sandbox, command_id: CommandId | None = None) -> Command:
    return Command(
        command_id or new_command_id(),
        sandbox.id,
        sandbox.account_id,
        "echo 'hi'",
        CommandStatus.RUNNING,
        "/workspace",
        120,
        NOW,
    )


def shell_of(sandbox: Sandbox) -> ShellSession:
    state = ShellState("/tmp/\udcff\n", {"A": "\udcfe\n✓"}, frozenset({"B", "C"}))
    return ShellSession(new_shell_id(), sandbox.id, sandbox.account_id, NOW, NOW, state)


class StoreSuite:
    """The contract of `seams.Store`."""

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
        sandbox = await add_sandbox(store, await add_account(store))
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

    async def test_a_command_comes_back_as_it_was_given(self, store: Store) -> None:
        command = command_of(await add_sandbox(store, await add_account(store)))
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
        command = command_of(await add_sandbox(store, await add_account(store)))
        await store.add_command(command)
        ended = await store.finish_command(command.id, status=status, exit=end, at=NOW)
        assert ended == replace(command, status=status, exit=end, completed_at=NOW)
        assert await store.get_command(command.id) == ended

    async def test_the_first_end_of_a_command_stands(self, store: Store) -> None:
        command = command_of(await add_sandbox(store, await add_account(store)))
        await store.add_command(command)
        first, second = Exit(0, None, False, 1, 1), Exit(None, 9, False, 2, 2)
        await store.finish_command(command.id, status=CommandStatus.COMPLETED, exit=first, at=NOW)
        again = await store.finish_command(command.id, status=CommandStatus.FAILED, exit=second, at=NOW)
        assert (again.status, again.exit) == (CommandStatus.COMPLETED, first)

    async def test_commands_are_listed_newest_first_by_sandbox_and_by_running(self, store: Store) -> None:
        account = await add_account(store)
        here, there = await add_sandbox(store, account), await add_sandbox(store, account)
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
        here = await add_sandbox(store, await add_account(store))
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
        busy, idle = await add_sandbox(store, account), await add_sandbox(store, account)
        command = command_of(busy)
        await store.add_command(command)
        assert await store.busy_sandboxes([busy.id, idle.id]) == {busy.id}
        assert await store.busy_sandboxes([idle.id]) == set()
        end = Exit(0, None, False, 0, 1)
        await store.finish_command(command.id, status=CommandStatus.COMPLETED, exit=end, at=NOW)
        assert await store.busy_sandboxes([busy.id]) == set()

    async def test_a_startup_is_a_command_and_no_activity(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
        command = replace(command_of(sandbox), kind=CommandKind.STARTUP, timeout_s=None)
        assert await store.get_startup(sandbox.id) is None
        assert await store.begin_startup(command, 1, replaces=None)
        run = StartupRun(sandbox.id, 1, command.id, command.started_at)
        assert await store.get_startup(sandbox.id) == run
        assert await store.get_command(command.id) == command
        assert await store.busy_sandboxes([sandbox.id]) == set()
        assert list(await store.list_commands(running=True)) == [command]

    async def test_of_startups_that_replace_the_same_run_one_is_recorded(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
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

    async def test_terminals_are_listed_apart_keep_their_size_and_make_nothing_busy(self, store: Store) -> None:
        sandbox = await add_sandbox(store, await add_account(store))
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
        another = await add_sandbox(store, await add_account(store, "two"))
        assert await store.busy_sandboxes([sandbox.id, another.id]) == set()

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
