"""A Store in memory, for tests of what stands on the store. Passes the same suite as the databases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from skerry.clock import SystemClock
from skerry.model.account import Account, ApiKey
from skerry.model.command import Command, CommandStatus, Exit, TerminalSize
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import AccountId, CommandId, KeyId, SandboxId
from skerry.model.lifecycle import Cause, Event, State, advance
from skerry.model.sandbox import Placement, Sandbox, labels_of
from skerry.model.ticket import Ticket
from skerry.seams import Clock


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
        self._tickets: dict[bytes, Ticket] = {}
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
        del self._keys[key_id]

    async def add_sandbox(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.id] = sandbox

    async def get_sandbox(self, sandbox_id: SandboxId) -> Sandbox:
        if sandbox_id not in self._sandboxes:
            raise NotFound(f"No sandbox '{sandbox_id}'.")
        return self._sandboxes[sandbox_id]

    async def list_sandboxes(
        self,
        *,
        account_id: AccountId | None = None,
        states: Sequence[State] | None = None,
        metadata: dict[str, str] | None = None,
        limit: int | None = None,
        before: SandboxId | None = None,
    ) -> Sequence[Sandbox]:
        newest_first = list(reversed(self._sandboxes.values()))
        if before is not None:
            ids = [sandbox.id for sandbox in newest_first]
            newest_first = newest_first[ids.index(before) + 1 :] if before in ids else []
        wanted = (metadata or {}).items()
        found = [
            sandbox
            for sandbox in newest_first
            if (account_id is None or sandbox.account_id == account_id)
            and (states is None or sandbox.state in states)
            and wanted <= labels_of(sandbox.metadata).items()
        ]
        return found[:limit]

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
        now = await self.get_sandbox(sandbox.id)
        if (now.state, now.generation) != (sandbox.state, sandbox.generation):
            raise Conflict(f"Sandbox '{now.id}' became {now.state} meanwhile.", code=f"sandbox_{now.state}")
        moved = replace(now, state=target, updated_at=self._clock.now())
        if placement is not None:
            moved = replace(moved, runtime=placement.runtime, template_digest=placement.template_digest)
        if cause is not None:
            moved = replace(moved, cause=cause, detail=detail)
        self._sandboxes[sandbox.id] = moved
        self.moves.append(Move(sandbox.id, event, target))
        return moved

    async def add_command(self, command: Command) -> None:
        self._commands[command.id] = command

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
        limit: int | None = None,
    ) -> Sequence[Command]:
        found = [
            command
            for command in reversed(self._commands.values())
            if (sandbox_id is None or command.sandbox_id == sandbox_id)
            and (running is None or (command.status is CommandStatus.RUNNING) is running)
            and (terminals is None or (command.terminal is not None) is terminals)
        ]
        return found[:limit]

    async def busy_sandboxes(self, sandbox_ids: Sequence[SandboxId]) -> set[SandboxId]:
        running = await self.list_commands(running=True, terminals=False)
        return {command.sandbox_id for command in running} & set(sandbox_ids)

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
