"""A Store in memory, for tests of what stands on the store. Passes the same suite as the databases."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from skerry.clock import SystemClock
from skerry.model.account import Account, ApiKey
from skerry.model.capture import Archive, Vault
from skerry.model.command import ANY_COMMAND, Command, CommandFilter, CommandKind, CommandStatus, Exit, TerminalSize
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, ArchiveId, CommandId, KeyId, SandboxId, ShellId, SnapshotId
from skerry.model.lifecycle import Cause, Event, State, advance
from skerry.model.metrics import Population
from skerry.model.request import Once, mismatch
from skerry.model.sandbox import Change, Filter, Placement, Promised, Sandbox
from skerry.model.shell import MOST_SHELLS, ShellSession, ShellState, too_many
from skerry.model.snapshot import Snapshot, SnapshotState
from skerry.model.startup import StartupRun
from skerry.model.ticket import Ticket
from skerry.seams import Clock
from skerry.testing.memory_rules import explained, holds
from skerry.testing.memory_snapshots import MemorySnapshots


@dataclass(frozen=True, slots=True)
class Move:
    """One transition that happened."""

    sandbox_id: SandboxId
    event: Event
    to_state: State


class MemoryStore:
    """Implements `seams.Store`. `moves` lists the transitions in order."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._accounts: dict[AccountId, Account] = {}
        self._keys: dict[KeyId, ApiKey] = {}
        self._sandboxes: dict[SandboxId, Sandbox] = {}
        self._commands: dict[CommandId, Command] = {}
        self._startups: dict[SandboxId, StartupRun] = {}
        self._shells: dict[ShellId, ShellSession] = {}
        self._tickets: dict[bytes, Ticket] = {}
        self._requests: dict[tuple[AccountId, str], tuple[Once, str, datetime]] = {}
        self._snapshots = MemorySnapshots(self._clock)
        self.moves: list[Move] = []

    async def add_account(self, account: Account, key: ApiKey) -> None:
        self._accounts[account.id] = account
        self._keys[key.id] = key

    async def get_account(self, account_id: AccountId) -> Account:
        if account_id not in self._accounts:
            raise NotFound("No such account.")
        return self._accounts[account_id]

    async def list_accounts(self) -> Sequence[Account]:
        return list(self._accounts.values())

    async def add_key(self, key: ApiKey) -> None:
        self._keys[key.id] = key

    async def find_key(self, secret_hash: bytes) -> ApiKey | None:
        return next((key for key in self._keys.values() if key.secret_hash == secret_hash), None)

    async def list_keys(self, account_id: AccountId) -> Sequence[ApiKey]:
        return [key for key in self._keys.values() if key.account_id == account_id]

    async def delete_key(self, account_id: AccountId, key_id: KeyId) -> None:
        if key_id not in self._keys or self._keys[key_id].account_id != account_id:
            raise NotFound(f"No API key '{key_id}'.")
        if len(await self.list_keys(account_id)) == 1:
            raise Conflict("This is the account's only key.", code="last_key")
        del self._keys[key_id]
        self._tickets = {key: each for key, each in self._tickets.items() if each.account_id != account_id}

    async def touch_keys(self, used: Mapping[KeyId, datetime]) -> None:
        for key in [self._keys[key_id] for key_id in used if key_id in self._keys]:
            if key.last_used_at is None or key.last_used_at < used[key.id]:
                self._keys[key.id] = replace(key, last_used_at=used[key.id])

    async def find_request(self, account_id: AccountId, wanted: Once) -> str | None:
        present = self._requests.get((account_id, wanted.key))
        if present is not None and present[0].fingerprint != wanted.fingerprint:
            raise mismatch(wanted.key)
        return None if present is None else present[1]

    async def forget_requests(self, before: datetime) -> None:
        self._requests = {place: each for place, each in self._requests.items() if each[2] >= before}

    async def _claim(self, account_id: AccountId, wanted: Once | None, made: str, at: datetime) -> str | None:
        if wanted is None:
            return None
        present = await self.find_request(account_id, wanted)
        if present is not None and present != wanted.instead_of:
            return present
        self._requests[account_id, wanted.key] = (wanted, made, at)
        return None

    async def add_sandbox(self, sandbox: Sandbox, wanted: Once | None = None) -> SandboxId:
        earlier = await self._claim(sandbox.account_id, wanted, sandbox.id, sandbox.created_at)
        if earlier is None:
            self._sandboxes[sandbox.id] = sandbox
        return SandboxId(earlier or sandbox.id)

    async def get_sandbox(self, sandbox_id: SandboxId) -> Sandbox:
        if sandbox_id not in self._sandboxes:
            raise NotFound(f"No sandbox '{sandbox_id}'.")
        return self._sandboxes[sandbox_id]

    async def list_sandboxes(
        self,
        *,
        account_id: AccountId | None = None,
        states: Sequence[State] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        before: SandboxId | None = None,
    ) -> Sequence[Sandbox]:
        newest_first = list(reversed(self._sandboxes.values()))
        if before is not None:
            ids = [sandbox.id for sandbox in newest_first]
            newest_first = newest_first[ids.index(before) + 1 :] if before in ids else []
        wanted = where or Filter()
        busy = await self.busy_sandboxes(list(self._sandboxes))
        found = [
            sandbox
            for sandbox in newest_first
            if (account_id is None or sandbox.account_id == account_id)
            and (states is None or sandbox.state in states)
            and holds(wanted, sandbox, busy=sandbox.id in busy)
        ]
        return found[:limit]

    async def change_sandbox(
        self, sandbox_id: SandboxId, change: Change, *, states: Sequence[State] | None = None
    ) -> Sandbox:
        now = await self.get_sandbox(sandbox_id)
        if states is not None and now.state not in states:
            raise Conflict(f"Sandbox '{now.id}' is {now.state}.", code=f"sandbox_{now.state}")
        changed = replace(
            now,
            name=now.name if change.name is None else change.name or None,
            metadata=now.metadata if change.metadata is None else change.metadata,
            env=now.env if change.env is None else change.env,
            detail=now.detail if change.detail is None else change.detail,
            updated_at=self._clock.now(),
        )
        self._sandboxes[sandbox_id] = changed
        return changed

    async def population(self) -> Population:
        there = [s for s in self._sandboxes.values() if s.state is not State.DESTROYED]
        running = sum(command.status is CommandStatus.RUNNING for command in self._commands.values())
        return Population(Counter((s.state, s.runtime, s.template) for s in there), running)

    async def promised(self, account_id: AccountId) -> Sequence[Promised]:
        own = [s for s in self._sandboxes.values() if s.account_id == account_id and s.state is not State.DESTROYED]
        found: list[Promised] = []
        for state in dict.fromkeys(s.state for s in own):
            limits = [s.limits for s in own if s.state is state]
            sums = (sum(getattr(each, name) for each in limits) for name in ("memory_mb", "cpu_millis", "disk_mb"))
            found.append(Promised(state, len(limits), *sums))
        return found

    async def running_commands(self, account_id: AccountId) -> Mapping[SandboxId, int]:
        active = (account_id, CommandStatus.RUNNING, CommandKind.COMMAND)
        own = [c for c in self._commands.values() if (c.account_id, c.status, c.kind) == active]
        return Counter(command.sandbox_id for command in own)

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
        target = advance(sandbox.state, event)
        now = await self.get_sandbox(sandbox.id)
        if unless_busy and await self.busy_sandboxes([sandbox.id]):
            raise Conflict(f"Sandbox '{sandbox.id}' runs a command.", code="sandbox_busy")
        if (now.state, now.generation) != (sandbox.state, sandbox.generation):
            raise Conflict(f"Sandbox '{now.id}' became {now.state} meanwhile.", code=f"sandbox_{now.state}")
        at = self._clock.now()
        moved = replace(now, state=target, updated_at=at, archive=archive or now.archive)
        if placement is not None:
            moved = replace(moved, runtime=placement.runtime, template_digest=placement.template_digest)
        moved = explained(moved, event, cause, detail)
        if event is Event.RESUME:
            moved = replace(moved, generation=now.generation + 1, active_at=at)
        if target is State.DESTROYED:
            moved = replace(moved, env={}, archive=None)
        self._sandboxes[sandbox.id] = moved
        self.moves.append(Move(sandbox.id, event, target))
        return moved

    async def touch_sandboxes(self, used: Mapping[SandboxId, datetime]) -> None:
        for sandbox in [self._sandboxes[sandbox_id] for sandbox_id in used if sandbox_id in self._sandboxes]:
            if sandbox.active_at is None or sandbox.active_at < used[sandbox.id]:
                self._sandboxes[sandbox.id] = replace(sandbox, active_at=used[sandbox.id])

    async def vault(self, account_id: AccountId) -> Vault:
        return self._snapshots.vault((await self.get_account(account_id)).id)

    async def list_vaults(self) -> Mapping[AccountId, Vault]:
        return dict(self._snapshots.vaults)

    async def archives_wanted(self, account_id: AccountId) -> set[ArchiveId]:
        kept = {s.archive.id for s in self._sandboxes.values() if s.account_id == account_id and s.archive is not None}
        return kept | self._snapshots.archives(account_id)

    async def add_snapshot(
        self, snapshot: Snapshot, wanted: Once | None = None, *, most: int | None = None
    ) -> SnapshotId:
        standing = None if wanted is None else await self.find_request(snapshot.account_id, wanted)
        if most is not None and (standing is None or (wanted and standing == wanted.instead_of)):
            self._snapshots.require_fewer(snapshot.account_id, most)
        earlier = await self._claim(snapshot.account_id, wanted, snapshot.id, snapshot.created_at)
        if earlier is None:
            self._snapshots.add(snapshot)
        return SnapshotId(earlier or snapshot.id)

    async def get_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        return self._snapshots.get(snapshot_id)

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
        return self._snapshots.page(account_id, states, source, name, before)[:limit]

    async def move_snapshot(
        self,
        snapshot: Snapshot,
        state: SnapshotState,
        *,
        archive: Archive | None = None,
        size_bytes: int | None = None,
        detail: str | None = None,
    ) -> Snapshot:
        return self._snapshots.move(snapshot, state, archive, size_bytes, detail)

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        self._snapshots.remove(snapshot_id)

    def _check_running(self, sandbox_id: SandboxId) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        state = State.DESTROYED if sandbox is None else sandbox.state
        if sandbox is None or state is not State.RUNNING:
            raise Conflict(f"Sandbox '{sandbox_id}' is {state}.", code=f"sandbox_{state}")
        return sandbox

    async def add_command(self, command: Command, wanted: Once | None = None) -> CommandId:
        earlier = None if wanted is None else await self.find_request(command.account_id, wanted)
        if earlier is not None and wanted is not None and earlier != wanted.instead_of:
            return CommandId(earlier)
        self._check_running(command.sandbox_id)
        await self._claim(command.account_id, wanted, command.id, command.started_at)
        self._commands[command.id] = command
        return command.id

    async def get_command(self, command_id: CommandId) -> Command:
        if command_id not in self._commands:
            raise NotFound(f"No command '{command_id}'.")
        return self._commands[command_id]

    async def finish_command(
        self, command_id: CommandId, *, status: CommandStatus, exit: Exit, at: datetime
    ) -> Command:
        command = await self.get_command(command_id)
        if command.status is CommandStatus.RUNNING:
            command = replace(command, status=status, exit=exit, completed_at=at)
            self._commands[command_id] = command
        return command

    async def list_commands(
        self,
        *,
        sandbox_id: SandboxId | None = None,
        running: bool | None = None,
        terminals: bool | None = None,
        where: CommandFilter = ANY_COMMAND,
        limit: int | None = None,
    ) -> Sequence[Command]:
        order = {command_id: at for at, command_id in enumerate(self._commands)}
        before = len(order) if where.before is None else order[where.before]
        found = [
            command
            for command in reversed(self._commands.values())
            if order[command.id] < before
            and (where.statuses is None or command.status in where.statuses)
            and (where.kinds is None or command.kind in where.kinds)
            and (sandbox_id is None or command.sandbox_id == sandbox_id)
            and (running is None or (command.status is CommandStatus.RUNNING) is running)
            and (terminals is None or (command.terminal is not None) is terminals)
        ]
        return found[:limit]

    async def busy_sandboxes(self, sandbox_ids: Sequence[SandboxId]) -> set[SandboxId]:
        active = (CommandStatus.RUNNING, CommandKind.COMMAND)
        return {c.sandbox_id for c in self._commands.values() if (c.status, c.kind) == active} & set(sandbox_ids)

    async def set_startup_command(self, sandbox: Sandbox, command: str | None) -> Sandbox:
        now = await self.get_sandbox(sandbox.id)
        if now.startup_command is None and now.generation == 1 and now.source is None:
            self._startups.setdefault(now.id, StartupRun(now.id, now.generation))
        self._sandboxes[now.id] = replace(now, startup_command=command, updated_at=self._clock.now())
        return self._sandboxes[now.id]

    async def get_startup(self, sandbox_id: SandboxId) -> StartupRun | None:
        return self._startups.get(sandbox_id)

    async def begin_startup(self, command: Command, generation: int, *, replaces: StartupRun | None) -> bool:
        if self._startups.get(command.sandbox_id) != replaces:
            return False
        if self._check_running(command.sandbox_id).generation != generation:
            return False
        self._startups[command.sandbox_id] = StartupRun(command.sandbox_id, generation, command.id, command.started_at)
        self._commands[command.id] = command
        return True

    async def skip_startup(self, sandbox: Sandbox, *, replaces: StartupRun | None) -> None:
        if self._startups.get(sandbox.id) == replaces:
            run = replaces or StartupRun(sandbox.id, sandbox.generation)
            self._startups[sandbox.id] = replace(run, generation=sandbox.generation)

    async def due_startups(self) -> Sequence[Sandbox]:
        begun = {run.sandbox_id: run.generation for run in self._startups.values()}
        return [
            sandbox
            for sandbox in self._sandboxes.values()
            if sandbox.state is State.RUNNING
            and (sandbox.startup_command is not None or sandbox.generation > 1 or sandbox.source is not None)
            and begun.get(sandbox.id, 0) < sandbox.generation
        ]

    async def add_shell(self, session: ShellSession) -> None:
        if len(await self.list_shells(session.sandbox_id)) >= MOST_SHELLS:
            raise too_many(session.sandbox_id)
        self._shells[session.id] = session

    async def get_shell(self, shell_id: ShellId) -> ShellSession:
        if shell_id not in self._shells:
            raise NotFound(f"No session '{shell_id}'.")
        return self._shells[shell_id]

    async def list_shells(self, sandbox_id: SandboxId) -> Sequence[ShellSession]:
        return [session for session in self._shells.values() if session.sandbox_id == sandbox_id]

    async def claim_shell(self, shell_id: ShellId, command_id: CommandId, token: str, at: datetime) -> bool:
        session = self._shells.get(shell_id)
        if session is None or session.command_id is not None:
            return False
        self._shells[shell_id] = replace(session, command_id=command_id, token=token, used_at=at)
        return True

    async def release_shell(self, shell_id: ShellId, command_id: CommandId, state: ShellState | None) -> None:
        session = self._shells.get(shell_id)
        if session is not None and session.command_id == command_id:
            self._shells[shell_id] = replace(session, command_id=None, token=None, state=state or session.state)

    async def delete_shell(self, shell_id: ShellId) -> None:
        self._shells.pop(shell_id, None)

    async def delete_shells(self, sandbox_id: SandboxId) -> None:
        for session in await self.list_shells(sandbox_id):
            del self._shells[session.id]

    async def resize_terminal(self, command_id: CommandId, size: TerminalSize) -> None:
        command = self._commands.get(command_id)
        if command is not None and command.terminal is not None:
            self._commands[command_id] = replace(command, terminal=size)

    async def add_ticket(self, ticket: Ticket) -> None:
        now = self._clock.now()
        self._tickets = {key: each for key, each in self._tickets.items() if each.expires_at > now}
        self._tickets[ticket.secret_hash] = ticket

    async def take_ticket(self, secret_hash: bytes) -> Ticket | None:
        return self._tickets.pop(secret_hash, None)

    async def ping(self) -> None:
        """Always there."""

    async def close(self) -> None:
        """Nothing to release."""
