"""The records."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from skerry.model.account import Account, ApiKey
from skerry.model.capture import Archive, Vault
from skerry.model.command import ANY_COMMAND, Command, CommandFilter, CommandStatus, Exit, TerminalSize
from skerry.model.ids import AccountId, ArchiveId, CommandId, KeyId, SandboxId, ShellId, SnapshotId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.metrics import Population
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Placement, Promised, Sandbox
from skerry.model.shell import ShellSession, ShellState
from skerry.model.snapshot import Snapshot, SnapshotState
from skerry.model.startup import StartupRun
from skerry.model.ticket import Ticket


class Store(Protocol):
    """The records. Each call is one transaction."""

    async def add_account(self, account: Account, key: ApiKey) -> None: ...

    async def get_account(self, account_id: AccountId) -> Account: ...

    async def list_accounts(self) -> Sequence[Account]: ...

    async def add_key(self, key: ApiKey) -> None: ...

    async def find_key(self, secret_hash: bytes) -> ApiKey | None: ...

    async def list_keys(self, account_id: AccountId) -> Sequence[ApiKey]: ...

    async def delete_key(self, account_id: AccountId, key_id: KeyId) -> None:
        """With it go the account's tickets. Raises NotFound, and Conflict (`last_key`) for an account's only key."""
        ...

    async def touch_keys(self, used: Mapping[KeyId, datetime]) -> None:
        """Note when keys were last used. An earlier time than the one on record, or a key that is gone: nothing."""
        ...

    async def find_request(self, account_id: AccountId, wanted: Once) -> str | None:
        """The id of what was made for a request, or None. Raises Conflict (`idempotency_mismatch`)."""
        ...

    async def forget_requests(self, before: datetime) -> None:
        """Forget the requests from before this time: sent again, they are new ones."""
        ...

    async def add_sandbox(self, sandbox: Sandbox, wanted: Once | None = None) -> SandboxId:
        """Add it and return its id; or, where an equal request has made one already, that one's, and add nothing.

        Raises:
            Conflict: The key was another request's (`idempotency_mismatch`).
        """
        ...

    async def get_sandbox(self, sandbox_id: SandboxId) -> Sandbox:
        """Raises NotFound. Knows no account: callers check the owner."""
        ...

    async def list_sandboxes(
        self,
        *,
        account_id: AccountId | None = None,
        states: Sequence[State] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        before: SandboxId | None = None,
    ) -> Sequence[Sandbox]:
        """Newest first; `before` is the last id of the page before."""
        ...

    async def change_sandbox(
        self, sandbox_id: SandboxId, change: Change, *, states: Sequence[State] | None = None
    ) -> Sandbox:
        """Replace what `change` gives.

        Raises:
            NotFound
            Conflict: It is in none of `states` (`sandbox_<state>`).
        """
        ...

    async def population(self) -> Population:
        """What there is, of all accounts."""
        ...

    async def promised(self, account_id: AccountId) -> Sequence[Promised]:
        """What the account's sandboxes may use, one entry a state; destroyed ones are left out."""
        ...

    async def running_commands(self, account_id: AccountId) -> Mapping[SandboxId, int]:
        """How many commands that are no terminals run in each of the account's sandboxes; those with none left out."""
        ...

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
        """Move a sandbox: compare-and-set on (id, state, generation), an event row in the same transaction.

        Cause and detail stay as they are where none are given, but `stop` and `resume` begin without them, and
        `archived` without the detail. `resume` raises the generation by one and is a use. `archive`: the latest now.
        `unless_busy`: not while a command of the kind `command` runs. A sandbox that becomes `destroyed` loses its
        environment and its archive.

        Raises:
            Conflict: The record has moved meanwhile, or the table has no such move; `sandbox_busy`.
        """
        ...

    async def touch_sandboxes(self, used: Mapping[SandboxId, datetime]) -> None:
        """Note when sandboxes were last used. An earlier time than the one on record, or an unknown one: nothing."""
        ...

    async def vault(self, account_id: AccountId) -> Vault:
        """The account's vault, made when it is first asked for, with a key of its own. Raises NotFound."""
        ...

    async def list_vaults(self) -> Mapping[AccountId, Vault]:
        """Those that were made."""
        ...

    async def archives_wanted(self, account_id: AccountId) -> set[ArchiveId]:
        """The archives of the account's sandboxes that are not destroyed, and of its snapshots."""
        ...

    async def add_snapshot(
        self, snapshot: Snapshot, wanted: Once | None = None, *, most: int | None = None
    ) -> SnapshotId:
        """As `add_sandbox`.

        Raises:
            Conflict: `too_many_snapshots`: the account has `most` already, in whatever state.
        """
        ...

    async def get_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Raises NotFound. Knows no account."""
        ...

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
        """Newest first; `before` is the last id of the page before."""
        ...

    async def move_snapshot(
        self,
        snapshot: Snapshot,
        state: SnapshotState,
        *,
        archive: Archive | None = None,
        size_bytes: int | None = None,
        detail: str | None = None,
    ) -> Snapshot:
        """Compare-and-set on (id, state). What is None stays as it is; the same state only changes the rest.

        Raises:
            NotFound
            Conflict: It has moved meanwhile (`snapshot_<state>`).
        """
        ...

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Unknown: success."""
        ...

    async def add_command(self, command: Command, wanted: Once | None = None) -> CommandId:
        """As `add_sandbox`.

        Raises:
            Conflict: The sandbox does not run at this moment (`sandbox_<state>`).
        """
        ...

    async def get_command(self, command_id: CommandId) -> Command:
        """Raises NotFound."""
        ...

    async def finish_command(
        self, command_id: CommandId, *, status: CommandStatus, exit: Exit, at: datetime
    ) -> Command:
        """Record the end of a running command. Already ended: the first end stands and is returned."""
        ...

    async def list_commands(
        self,
        *,
        sandbox_id: SandboxId | None = None,
        running: bool | None = None,
        terminals: bool | None = None,
        where: CommandFilter = ANY_COMMAND,
        limit: int | None = None,
    ) -> Sequence[Command]:
        """Newest first. `terminals`: only those, or only what is none. `where.before` is one that there is."""
        ...

    async def resize_terminal(self, command_id: CommandId, size: TerminalSize) -> None:
        """Note a terminal's size. No such terminal: nothing happens."""
        ...

    async def busy_sandboxes(self, sandbox_ids: Sequence[SandboxId]) -> set[SandboxId]:
        """Those of `sandbox_ids` with a running command (shown as `active`). A startup or a terminal is none."""
        ...

    async def set_startup_command(self, sandbox: Sandbox, command: str | None) -> Sandbox:
        """Replace the startup command. A sandbox that had none is not started up for the generation it has now."""
        ...

    async def get_startup(self, sandbox_id: SandboxId) -> StartupRun | None: ...

    async def begin_startup(self, command: Command, generation: int, *, replaces: StartupRun | None) -> bool:
        """Record a startup's command and that it is the latest run.

        False: `replaces` is not the latest any more, or the sandbox is of another generation.

        Raises:
            Conflict: As `add_command`.
        """
        ...

    async def skip_startup(self, sandbox: Sandbox, *, replaces: StartupRun | None) -> None:
        """Note that this generation had nothing to run. `replaces` is not the latest any more: nothing happens."""
        ...

    async def due_startups(self) -> Sequence[Sandbox]:
        """Running sandboxes whose generation was not started up yet.

        Without a startup command: only those that came up with files, one of which may say what to run.
        """
        ...

    async def add_shell(self, session: ShellSession) -> None:
        """Record a session. Raises Conflict (`too_many_sessions`) where its sandbox has MOST_SHELLS already."""
        ...

    async def get_shell(self, shell_id: ShellId) -> ShellSession:
        """Raises NotFound. Knows no account."""
        ...

    async def list_shells(self, sandbox_id: SandboxId) -> Sequence[ShellSession]:
        """Oldest first."""
        ...

    async def claim_shell(self, shell_id: ShellId, command_id: CommandId, token: str, at: datetime) -> bool:
        """Give the session to a command. False: another one has it, or there is no such session any more."""
        ...

    async def release_shell(self, shell_id: ShellId, command_id: CommandId, state: ShellState | None) -> None:
        """Take the session back, with what the command left (None: as it was). Not this command's: does nothing."""
        ...

    async def delete_shell(self, shell_id: ShellId) -> None:
        """Unknown: success."""
        ...

    async def delete_shells(self, sandbox_id: SandboxId) -> None:
        """All sessions of a sandbox."""
        ...

    async def add_ticket(self, ticket: Ticket) -> None: ...

    async def take_ticket(self, secret_hash: bytes) -> Ticket | None:
        """The ticket with this hash, once: it is gone from then on. Expired or not, the caller looks at that."""
        ...

    async def ping(self) -> None:
        """Raises Unavailable."""
        ...

    async def close(self) -> None: ...
