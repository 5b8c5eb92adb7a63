"""The Store over SQL. Each call is one transaction; statements are built once and their compiled form is kept."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Executable, Text, bindparam, delete, func, insert, select, text, update

from skerry.model.account import Account, ApiKey
from skerry.model.command import ANY_COMMAND, Command, CommandFilter, CommandStatus, Exit, TerminalSize
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, CommandId, KeyId, SandboxId, ShellId
from skerry.model.lifecycle import Cause, Event, State, advance
from skerry.model.metrics import Population
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Placement, Promised, Sandbox, labels_of
from skerry.model.shell import ShellSession, ShellState
from skerry.model.startup import StartupRun
from skerry.model.ticket import Ticket
from skerry.seams import Clock
from skerry.store import changes, lists, once, rows, shells, startups, tickets
from skerry.store.box import Box
from skerry.store.prepared import Prepared
from skerry.store.sealing import NOTHING
from skerry.store.seen import Seen
from skerry.store.sqlite import Sqlite
from skerry.store.tables import (
    accounts,
    api_keys,
    commands,
    projects,
    sandbox_events,
    sandboxes,
)

_SANDBOX = Prepared(select(sandboxes).where(sandboxes.c.id == bindparam("id_")))
_COMMAND = Prepared(select(commands).where(commands.c.id == bindparam("id_")))
_KEY = select(api_keys).where(api_keys.c.secret_hash == bindparam("hash_"))
# A literal, not a parameter: only then is the partial index of the running ones used.
_RUNS = text("status = 'running'")
_ACTIVE = text("status = 'running' AND kind = 'command'")
_BUSY = Prepared(select(commands.c.seq).where(_ACTIVE, commands.c.sandbox_id == bindparam("id_")).limit(1))
_TOUCH = (
    update(api_keys)
    .where(api_keys.c.id == bindparam("id_"))
    .where(func.coalesce(api_keys.c.last_used_at_us, 0) < bindparam("at_"))
    .values(last_used_at_us=bindparam("at_"))
)
_ADD_SANDBOX = insert(sandboxes)
_ADD_COMMAND = Prepared(insert(commands), rows.COMMAND_COLUMNS)
_ADD_EVENT = Prepared(insert(sandbox_events), rows.EVENT_COLUMNS)
# What is given as None stays as it is.
_MOVE = Prepared(
    update(sandboxes)
    .where(
        sandboxes.c.id == bindparam("id_"),
        sandboxes.c.state == bindparam("from_"),
        sandboxes.c.generation == bindparam("generation_"),
    )
    .values({"state": bindparam("to_"), "updated_at_us": bindparam("at_")})
    .values(
        {name: func.coalesce(bindparam(f"new_{name}", type_=Text()), sandboxes.c[name]) for name in rows.MOVE_COLUMNS}
    )
    .returning(*sandboxes.c)
)
_FINISH = Prepared(
    update(commands)
    .where(commands.c.id == bindparam("id_"), commands.c.status == CommandStatus.RUNNING.value)
    .values({column: bindparam(f"new_{column}") for column in rows.EXIT_COLUMNS})
    .returning(*commands.c)
)


class SqlStore:
    """Implements `seams.Store`. Close it once, at the end."""

    def __init__(self, database: Sqlite, clock: Clock, box: Box) -> None:
        self._database = database
        self._clock = clock
        self._box = box
        self._read = partial(rows.sandbox_of, box=box)
        self._seen = Seen(self._read)

    async def add_account(self, account: Account, key: ApiKey) -> None:
        def work(connection: Connection) -> None:
            project = {
                "id": account.default_project_id,
                "account_id": account.id,
                "name": "default",
                "created_at_us": rows.to_us(account.created_at),
            }
            connection.execute(insert(accounts), rows.account_row(account))
            connection.execute(insert(projects), project)
            connection.execute(insert(api_keys), rows.key_row(key))

        await self._database.write(work)

    async def get_account(self, account_id: AccountId) -> Account:
        found = await self._list(select(accounts).where(accounts.c.id == account_id))
        if not found:
            raise NotFound("No such account.")
        return rows.account_of(found[0])

    async def list_accounts(self) -> Sequence[Account]:
        return [rows.account_of(row) for row in await self._list(select(accounts).order_by(accounts.c.created_at_us))]

    async def add_key(self, key: ApiKey) -> None:
        await self._database.write(lambda connection: connection.execute(insert(api_keys), rows.key_row(key)) and None)

    async def find_key(self, secret_hash: bytes) -> ApiKey | None:
        row = self._database.glance(lambda connection: connection.execute(_KEY, {"hash_": secret_hash}).one_or_none())
        return None if row is None else rows.key_of(row)

    async def list_keys(self, account_id: AccountId) -> Sequence[ApiKey]:
        query = select(api_keys).where(api_keys.c.account_id == account_id)
        return [rows.key_of(row) for row in await self._list(query.order_by(api_keys.c.created_at_us))]

    async def delete_key(self, account_id: AccountId, key_id: KeyId) -> None:
        own = api_keys.c.account_id == account_id

        def work(connection: Connection) -> None:
            keys = {row[0] for row in connection.execute(select(api_keys.c.id).where(own))}
            if key_id not in keys:
                raise NotFound(f"No API key '{key_id[:64]}'.")
            if len(keys) == 1:
                raise Conflict("This is the account's only key. Make another one first.", code="last_key")
            connection.execute(delete(api_keys).where(own, api_keys.c.id == key_id))
            tickets.void(connection, account_id=account_id)

        await self._database.write(work)

    async def touch_keys(self, used: Mapping[KeyId, datetime]) -> None:
        later = [{"id_": key_id, "at_": rows.to_us(at)} for key_id, at in used.items()]
        if later:
            await self._database.write(lambda connection: connection.execute(_TOUCH, later) and None)

    async def find_request(self, account_id: AccountId, wanted: Once) -> str | None:
        return self._database.glance(partial(once.find, box=self._box, account_id=account_id, wanted=wanted))

    async def forget_requests(self, before: datetime) -> None:
        await self._database.write(partial(once.forget, before_us=rows.to_us(before)))

    async def add_sandbox(self, sandbox: Sandbox, wanted: Once | None = None) -> SandboxId:
        labels = labels_of(sandbox.metadata)
        row = rows.sandbox_row(sandbox, self._box)
        born = _event_row(sandbox, "add", None, sandbox.state, rows.to_us(sandbox.created_at))

        def work(connection: Connection) -> SandboxId:
            earlier = once.claim(connection, self._box, sandbox.account_id, wanted, sandbox.id, row["created_at_us"])
            if earlier is not None:
                return SandboxId(earlier)
            connection.execute(_ADD_SANDBOX, row)
            _ADD_EVENT.run(connection, born)
            if labels:
                changes.label(connection, sandbox.id, labels)
            return sandbox.id

        return await self._database.write(work)

    async def get_sandbox(self, sandbox_id: SandboxId) -> Sandbox:
        return self._database.glance(partial(_sandbox, read=self._seen.sandbox_of, sandbox_id=sandbox_id))

    async def change_sandbox(
        self, sandbox_id: SandboxId, change: Change, *, states: Sequence[State] | None = None
    ) -> Sandbox:
        at = rows.to_us(self._clock.now())

        def work(connection: Connection) -> Sandbox:
            sandbox = _sandbox(connection, self._read, sandbox_id)
            if states is not None and sandbox.state not in states:
                raise Conflict(f"Sandbox '{sandbox.id}' is {sandbox.state}.", code=f"sandbox_{sandbox.state}")
            changes.change(connection, self._box, sandbox, change, at)
            return _sandbox(connection, self._read, sandbox_id)

        return await self._database.write(work)

    async def list_sandboxes(
        self,
        *,
        account_id: AccountId | None = None,
        states: Sequence[State] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        before: SandboxId | None = None,
    ) -> Sequence[Sandbox]:
        query = lists.sandboxes_query(account_id, states, where or Filter()).limit(limit)
        if before is not None:
            query = lists.behind(query, before)
        return [rows.sandbox_of(row, self._box) for row in await self._list(query)]

    async def population(self) -> Population:
        return await self._database.read(lists.population)

    async def promised(self, account_id: AccountId) -> Sequence[Promised]:
        return lists.promised_of(await self._list(lists.promised_query(account_id)))

    async def running_commands(self, account_id: AccountId) -> Mapping[SandboxId, int]:
        return {SandboxId(row[0]): row[1] for row in await self._list(lists.running_query(account_id))}

    async def transition(
        self,
        sandbox: Sandbox,
        event: Event,
        *,
        placement: Placement | None = None,
        cause: Cause | None = None,
        detail: str = "",
    ) -> Sandbox:
        target = advance(sandbox.state, event)
        at = rows.to_us(self._clock.now())
        change = {
            "id_": sandbox.id,
            "from_": sandbox.state.value,
            "generation_": sandbox.generation,
            "to_": target.value,
            "at_": at,
            "new_runtime": None if placement is None else placement.runtime,
            "new_template_digest": None if placement is None else placement.template_digest,
            "new_cause": None if cause is None else cause.value,
            "new_detail": None if cause is None else detail,
            # A sandbox that is gone has no use for its secrets.
            "new_env": NOTHING if target is State.DESTROYED else None,
        }
        happened = _event_row(sandbox, event.value, sandbox.state, target, at, cause, detail)

        def work(connection: Connection) -> Sandbox:
            moved = _MOVE.run(connection, change)
            if moved is None:
                raise _moved_meanwhile(_sandbox(connection, self._read, sandbox.id), event)
            _ADD_EVENT.run(connection, happened)
            return rows.sandbox_of(moved, self._box)

        return await self._database.write(work)

    async def add_command(self, command: Command, wanted: Once | None = None) -> CommandId:
        row = rows.command_row(command)

        def work(connection: Connection) -> CommandId:
            earlier = once.claim(connection, self._box, command.account_id, wanted, command.id, row["started_at_us"])
            if earlier is not None:
                return CommandId(earlier)
            _ADD_COMMAND.run(connection, row)
            return command.id

        return await self._database.write(work)

    async def get_command(self, command_id: CommandId) -> Command:
        return self._database.glance(partial(_command, command_id=command_id))

    async def finish_command(
        self, command_id: CommandId, *, status: CommandStatus, exit: Exit, at: datetime
    ) -> Command:
        change = {"id_": command_id} | {f"new_{name}": value for name, value in rows.exit_row(status, exit, at).items()}

        def work(connection: Connection) -> Command:
            row = _FINISH.run(connection, change)
            return _command(connection, command_id) if row is None else rows.command_of(row)

        return await self._database.write(work)

    async def list_commands(
        self,
        *,
        sandbox_id: SandboxId | None = None,
        running: bool | None = None,
        terminals: bool | None = None,
        where: CommandFilter = ANY_COMMAND,
        limit: int | None = None,
    ) -> Sequence[Command]:
        query = lists.commands_query(where).limit(limit)
        if terminals is not None:
            query = query.where(commands.c.cols.is_not(None) if terminals else commands.c.cols.is_(None))
        if sandbox_id is not None:
            query = query.where(commands.c.sandbox_id == sandbox_id)
        if running is not None:
            query = query.where(_RUNS if running else commands.c.status != CommandStatus.RUNNING.value)
        return [rows.command_of(row) for row in await self._list(query)]

    async def busy_sandboxes(self, sandbox_ids: Sequence[SandboxId]) -> set[SandboxId]:
        if len(sandbox_ids) == 1:
            one = {"id_": sandbox_ids[0]}
            busy = self._database.glance(lambda connection: _BUSY.run(connection, one))
            return set() if busy is None else {sandbox_ids[0]}
        query = select(commands.c.sandbox_id).where(_ACTIVE, commands.c.sandbox_id.in_(sandbox_ids)).distinct()
        return {SandboxId(row[0]) for row in await self._list(query)}

    async def set_startup_command(self, sandbox: Sandbox, command: str | None) -> Sandbox:
        at = rows.to_us(self._clock.now())

        def work(connection: Connection) -> Sandbox:
            startups.set_command(connection, sandbox, command, at)
            return _sandbox(connection, self._read, sandbox.id)

        return await self._database.write(work)

    async def get_startup(self, sandbox_id: SandboxId) -> StartupRun | None:
        return self._database.glance(partial(startups.get, sandbox_id=sandbox_id))

    async def begin_startup(self, command: Command, generation: int, *, replaces: StartupRun | None) -> bool:
        row = rows.command_row(command)

        def work(connection: Connection) -> bool:
            if not startups.begin(connection, command, generation, replaces):
                return False
            _ADD_COMMAND.run(connection, row)
            return True

        return await self._database.write(work)

    async def due_startups(self) -> Sequence[Sandbox]:
        return [rows.sandbox_of(row, self._box) for row in await self._list(startups.DUE)]

    async def add_shell(self, session: ShellSession) -> None:
        await self._database.write(partial(shells.add, box=self._box, session=session))

    async def get_shell(self, shell_id: ShellId) -> ShellSession:
        return self._database.glance(partial(shells.get, box=self._box, shell_id=shell_id))

    async def list_shells(self, sandbox_id: SandboxId) -> Sequence[ShellSession]:
        return await self._database.read(partial(shells.of_sandbox, box=self._box, sandbox_id=sandbox_id))

    async def claim_shell(self, shell_id: ShellId, command_id: CommandId, token: str, at: datetime) -> bool:
        claim = {"id_": shell_id, "command": command_id, "new_token": token, "at": rows.to_us(at)}
        return await self._database.write(partial(shells.claim, claim=claim))

    async def release_shell(self, shell_id: ShellId, command_id: CommandId, state: ShellState | None) -> None:
        sealed = None if state is None else shells.seal_state(self._box, shell_id, state)
        await self._database.write(partial(shells.release, shell_id=shell_id, command_id=command_id, sealed=sealed))

    async def delete_shell(self, shell_id: ShellId) -> None:
        await self._database.write(partial(shells.remove, shell_id=shell_id))

    async def delete_shells(self, sandbox_id: SandboxId) -> None:
        await self._database.write(partial(shells.remove_of, sandbox_id=sandbox_id))

    async def resize_terminal(self, command_id: CommandId, size: TerminalSize) -> None:
        chosen = update(commands).where(commands.c.id == command_id, commands.c.cols.is_not(None))
        change = chosen.values(cols=size.cols, rows=size.rows)
        await self._database.write(lambda connection: connection.execute(change) and None)

    async def add_ticket(self, ticket: Ticket) -> None:
        await self._database.write(partial(tickets.add, ticket=ticket, now_us=rows.to_us(self._clock.now())))

    async def take_ticket(self, secret_hash: bytes) -> Ticket | None:
        return await self._database.write(partial(tickets.take, secret_hash=secret_hash))

    async def ping(self) -> None:
        await self._list(select(1))

    async def close(self) -> None:
        await self._database.close()

    async def _list(self, query: Executable) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(query).all())


def _sandbox(connection: Connection, read: Callable[[rows.Columns], Sandbox], sandbox_id: SandboxId) -> Sandbox:
    row = _SANDBOX.run(connection, {"id_": sandbox_id})
    if row is None:
        raise NotFound(f"No sandbox '{sandbox_id}'.")
    return read(row)


def _command(connection: Connection, command_id: CommandId) -> Command:
    row = _COMMAND.run(connection, {"id_": command_id})
    if row is None:
        raise NotFound(f"No command '{command_id}'.")
    return rows.command_of(row)


def _moved_meanwhile(now: Sandbox, event: Event) -> Conflict:
    return Conflict(
        f"Sandbox '{now.id}' became {now.state} meanwhile and did not take '{event}'. Look again and decide anew.",
        code=f"sandbox_{now.state}",
    )


def _event_row(
    sandbox: Sandbox,
    event: str,
    from_state: State | None,
    to_state: State,
    at_us: int,
    cause: Cause | None = None,
    detail: str = "",
) -> dict[str, Any]:
    return {
        "sandbox_id": sandbox.id,
        "generation": sandbox.generation,
        "event": event,
        "from_state": from_state,
        "to_state": to_state,
        "cause": cause,
        "detail": detail,
        "at_us": at_us,
    }
