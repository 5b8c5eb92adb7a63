"""The Store over SQL. Each call is one transaction; statements are built once and their compiled form is kept."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Executable, bindparam, insert, select, text, update

from skerry.model.account import Account, ApiKey
from skerry.model.capture import Archive, Vault
from skerry.model.command import ANY_COMMAND, Command, CommandFilter, CommandStatus, Exit, TerminalSize
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, ArchiveId, CommandId, KeyId, SandboxId, ShellId, SnapshotId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.metrics import Population
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Placement, Promised, Sandbox
from skerry.model.shell import ShellSession, ShellState
from skerry.model.snapshot import Snapshot, SnapshotState
from skerry.model.startup import StartupRun
from skerry.model.ticket import Ticket
from skerry.seams import Clock
from skerry.store import accounts, changes, lists, moves, once, rows, shells, snapshots, startups, tickets
from skerry.store.box import Box
from skerry.store.prepared import Prepared
from skerry.store.seen import Seen
from skerry.store.sqlite import Sqlite
from skerry.store.tables import commands

_COMMAND = Prepared(select(commands).where(commands.c.id == bindparam("id_")))
# A literal, not a parameter: only then is the partial index of the running ones used.
_RUNS = text("status = 'running'")
_ADD_COMMAND = Prepared(insert(commands), rows.COMMAND_COLUMNS)
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
        self._seen = Seen(partial(rows.sandbox_of, box=box))

    async def add_account(self, account: Account, key: ApiKey) -> None:
        await self._database.write(partial(accounts.add, account=account, key=key))

    async def get_account(self, account_id: AccountId) -> Account:
        return await self._database.read(partial(accounts.get, account_id=account_id))

    async def list_accounts(self) -> Sequence[Account]:
        return await self._database.read(accounts.all_of_them)

    async def add_key(self, key: ApiKey) -> None:
        await self._database.write(partial(accounts.add_key, key=key))

    async def find_key(self, secret_hash: bytes) -> ApiKey | None:
        return self._database.glance(partial(accounts.find_key, secret_hash=secret_hash))

    async def list_keys(self, account_id: AccountId) -> Sequence[ApiKey]:
        return await self._database.read(partial(accounts.keys_of, account_id=account_id))

    async def delete_key(self, account_id: AccountId, key_id: KeyId) -> None:
        await self._database.write(partial(accounts.delete_key, account_id=account_id, key_id=key_id))

    async def touch_keys(self, used: Mapping[KeyId, datetime]) -> None:
        if used:
            await self._database.write(partial(accounts.touch_keys, used=used))

    async def find_request(self, account_id: AccountId, wanted: Once) -> str | None:
        return self._database.glance(partial(once.find, box=self._box, account_id=account_id, wanted=wanted))

    async def forget_requests(self, before: datetime) -> None:
        await self._database.write(partial(once.forget, before_us=rows.to_us(before)))

    async def add_sandbox(self, sandbox: Sandbox, wanted: Once | None = None) -> SandboxId:
        return await self._database.write(partial(moves.add, box=self._box, sandbox=sandbox, wanted=wanted))

    async def get_sandbox(self, sandbox_id: SandboxId) -> Sandbox:
        return self._seen.sandbox_of(self._database.glance(partial(moves.row_of, sandbox_id=sandbox_id)))

    async def change_sandbox(
        self, sandbox_id: SandboxId, change: Change, *, states: Sequence[State] | None = None
    ) -> Sandbox:
        at = rows.to_us(self._clock.now())

        def work(connection: Connection) -> Sandbox:
            sandbox = moves.get(connection, self._box, sandbox_id)
            if states is not None and sandbox.state not in states:
                raise Conflict(f"Sandbox '{sandbox.id}' is {sandbox.state}.", code=f"sandbox_{sandbox.state}")
            changes.change(connection, self._box, sandbox, change, at)
            return moves.get(connection, self._box, sandbox_id)

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
        archive: Archive | None = None,
        unless_busy: bool = False,
    ) -> Sandbox:
        now = self._clock.now()
        wanted = moves.Move(sandbox, event, now, placement, cause, detail, archive, unless_busy)
        return await self._database.write(partial(moves.move, box=self._box, wanted=wanted))

    async def touch_sandboxes(self, used: Mapping[SandboxId, datetime]) -> None:
        if used:
            await self._database.write(partial(changes.touch, used=used))

    async def vault(self, account_id: AccountId) -> Vault:
        present = self._database.glance(partial(snapshots.find_vault, box=self._box, account_id=account_id))
        if present is not None:
            return present
        at = rows.to_us(self._clock.now())
        return await self._database.write(partial(snapshots.vault, box=self._box, account_id=account_id, at_us=at))

    async def list_vaults(self) -> Mapping[AccountId, Vault]:
        return await self._database.read(partial(snapshots.all_vaults, box=self._box))

    async def archives_wanted(self, account_id: AccountId) -> set[ArchiveId]:
        return await self._database.read(partial(snapshots.archives_wanted, account_id=account_id))

    async def add_snapshot(
        self, snapshot: Snapshot, wanted: Once | None = None, *, most: int | None = None
    ) -> SnapshotId:
        add = partial(snapshots.add, box=self._box, snapshot=snapshot, wanted=wanted, most=most)
        return await self._database.write(add)

    async def get_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        return self._database.glance(partial(snapshots.get, box=self._box, snapshot_id=snapshot_id))

    async def list_snapshots(
        self,
        *,
        account_id: AccountId | None = None,
        states: Sequence[SnapshotState] | None = None,
        source: SandboxId | None = None,
        name: str | None = None,
        limit: int | None = None,
        before: SnapshotId | None = None,
    ) -> Sequence[Snapshot]:
        query = snapshots.query(account_id, states, source, name, before).limit(limit)
        return [snapshots.snapshot_of(row, self._box) for row in await self._list(query)]

    async def move_snapshot(
        self,
        snapshot: Snapshot,
        state: SnapshotState,
        *,
        archive: Archive | None = None,
        size_bytes: int | None = None,
        detail: str | None = None,
    ) -> Snapshot:
        values = snapshots.changes(archive, size_bytes, detail, rows.to_us(self._clock.now()))
        work = partial(snapshots.move, box=self._box, snapshot=snapshot, state=state, values=values)
        return await self._database.write(work)

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        await self._database.write(partial(snapshots.remove, snapshot_id=snapshot_id))

    async def add_command(self, command: Command, wanted: Once | None = None) -> CommandId:
        row = rows.command_row(command)

        def work(connection: Connection) -> CommandId:
            earlier = once.claim(connection, self._box, command.account_id, wanted, command.id, row["started_at_us"])
            if earlier is not None:
                return CommandId(earlier)
            moves.check_running(connection, command.sandbox_id)
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
            busy = self._database.glance(lambda connection: moves.BUSY.run(connection, one))
            return set() if busy is None else {sandbox_ids[0]}
        query = select(commands.c.sandbox_id).where(moves.ACTIVE, commands.c.sandbox_id.in_(sandbox_ids)).distinct()
        return {SandboxId(row[0]) for row in await self._list(query)}

    async def set_startup_command(self, sandbox: Sandbox, command: str | None) -> Sandbox:
        at = rows.to_us(self._clock.now())

        def work(connection: Connection) -> Sandbox:
            startups.set_command(connection, sandbox, command, at)
            return moves.get(connection, self._box, sandbox.id)

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

    async def skip_startup(self, sandbox: Sandbox, *, replaces: StartupRun | None) -> None:
        await self._database.write(partial(startups.skip, sandbox=sandbox, replaces=replaces))

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


def _command(connection: Connection, command_id: CommandId) -> Command:
    row = _COMMAND.run(connection, {"id_": command_id})
    if row is None:
        raise NotFound(f"No command '{command_id}'.")
    return rows.command_of(row)
