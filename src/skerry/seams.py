"""The protocols everything outside stands behind. Whoever implements one passes its suite in `skerry.testing`.

Control is written against these alone. A new seam needs a decision record.
"""

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from skerry.model.account import Account, ApiKey
from skerry.model.bundle import Bundle
from skerry.model.capability import Capabilities, Health, Probe
from skerry.model.command import (
    ANY_COMMAND,
    Command,
    CommandEvent,
    CommandFilter,
    CommandStatus,
    ExecSpec,
    Exit,
    TerminalSize,
)
from skerry.model.files import Archived, ArchiveLimits, FileChange, FileInfo
from skerry.model.ids import AccountId, CommandId, KeyId, SandboxId, ShellId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.metrics import Metrics, Population, Usage
from skerry.model.process import ListeningPort, Process
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Observed, Placement, Promised, Sandbox, SandboxSpec
from skerry.model.shell import ShellSession, ShellState
from skerry.model.startup import StartupRun
from skerry.model.template import BuildProgress, TemplateState
from skerry.model.ticket import Ticket


class Clock(Protocol):
    """Time. Tests move it."""

    def now(self) -> datetime:
        """The time, aware, UTC."""
        ...

    async def sleep_until(self, when: datetime) -> None: ...


class ByteStream(Protocol):
    """A two-way stream of bytes, half-closable, with back pressure on both sides."""

    async def receive(self) -> bytes:
        """The next bytes, or b"" at the end."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def send_eof(self) -> None: ...

    async def close(self) -> None:
        """Ends both directions. Safe to call twice."""
        ...


class FileReader(Protocol):
    """An open file's bytes: `info` is from the moment of opening; iterating yields the range asked for, in order."""

    info: FileInfo

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class ArchiveReader(Protocol):
    """A tree as a tar stream: iterate it once. A stream that broke off has no end marker, and iterating raises."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    @property
    def result(self) -> Archived:
        """What is in it. Known at the end."""
        ...


class Guest(Protocol):
    """What can be done inside one sandbox.

    Every call may raise SandboxGone (it died; `cause`), Unavailable (the way to it is broken, try again) and
    GuestError (it was tried inside and failed, with sbxd's code). A command's failure is no raise: it is an `Exit`.
    """

    async def exec(self, spec: ExecSpec) -> None:
        """Start a command and return once it runs. Known `spec.id`: does nothing.

        Raises:
            GuestError: It could not be started (`not_found`, `permission`, `cwd`, `user`, `limit`).
        """
        ...

    def attach(self, command_id: CommandId, offset: int = 0) -> AsyncIterator[CommandEvent]:
        """The command's output from `offset` on, as it comes, then one `Exit`. Many readers may follow one command.

        Works after the command has ended, and for as long as its output is kept.

        Raises:
            NotFound: No such command here.
        """
        ...

    async def signal(self, command_id: CommandId, signal: int, scope: str = "tree") -> None:
        """Send a signal to `tree` (every descendant), `group` or `main`. An ended command: nothing happens."""
        ...

    async def kill(self, command_id: CommandId) -> None:
        """SIGKILL every descendant until none is left."""
        ...

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None: ...

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None: ...

    async def close_stdin(self, command_id: CommandId) -> None: ...

    def read(self, path: str, offset: int = 0, length: int = -1) -> AbstractAsyncContextManager[FileReader]:
        """Open a regular file for reading `length` bytes (-1: to the end) from `offset`."""
        ...

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None, create_only: bool = False
    ) -> FileInfo:
        """Replace a file with `chunks`, all or nothing, parents made. An iterator that raises leaves nothing behind."""
        ...

    def list(self, path: str) -> AsyncIterator[FileInfo]: ...

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo: ...

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo: ...

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileInfo: ...

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        """Remove, never through a symlink; the number of entries removed."""
        ...

    async def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
        now: bool = False,
        create: bool = False,
    ) -> FileInfo:
        """Change what is given: the mode, the time (to `mtime_ns`, or with `now` to the present). Follows symlinks.

        With `create`, an empty file (with its parents) where nothing is.
        """
        ...

    def pack(self, path: str, limits: ArchiveLimits) -> AbstractAsyncContextManager[ArchiveReader]:
        """Open a directory as a tar stream. Links are stored, never followed; the tree's file system is not left.

        What tar cannot carry, and what is beyond `max_bytes`, is left out and told.

        Raises:
            GuestError: `not_found`, `not_a_directory`; while iterating `limit`: more than `max_entries`.
        """
        ...

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limits: ArchiveLimits) -> Archived:
        """Unpack a tar stream below a directory, which is made. Nothing outside of it is touched by any name or link.

        Entries that lead out, devices and the like are skipped and told. Each file is replaced whole; owners are
        root; setuid and setgid are dropped. An error leaves what was complete before.

        Raises:
            GuestError: `invalid`: no tar, or it ends early; `limit`; `no_space`, `quota`.
        """
        ...

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]: ...

    async def processes(self) -> Sequence[Process]:
        """What runs inside, but for Skerry's own, by pid."""
        ...

    async def ports(self) -> Sequence[ListeningPort]:
        """The TCP sockets that listen inside."""
        ...

    async def open_port(self, port: int) -> ByteStream:
        """Connect to a TCP port on the loopback inside.

        Raises:
            GuestError: `refused`: nothing listens there.
        """
        ...


class Provider(Protocol):
    """A fleet that runs sandboxes. Every verb is idempotent on (id, generation); an older generation is a Conflict."""

    name: str

    async def capabilities(self) -> Capabilities: ...

    async def create(self, spec: SandboxSpec) -> Placement:
        """Make the sandbox and return when sbxd answers in it. The same (id, generation) again: the same answer.

        A failed create leaves nothing behind.

        Raises:
            NotFound: Unknown template (the message lists the known ones).
            Refused: The host cannot give what the spec asks for.
            TooBusy: No room now.
        """
        ...

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """End it, free everything, its files too. Unknown or already gone: success. The outputs of commands stay."""
        ...

    async def list(self) -> Sequence[Observed]:
        """All sandboxes this provider holds anything of: running, half-made and dead ones."""
        ...

    def watch(self) -> AsyncIterator[Observed]:
        """Sandboxes as they die. Best effort: `list` is the truth."""
        ...

    async def metrics(self, sandbox_id: SandboxId) -> Metrics:
        """What the sandbox uses now and what it used, a day back at most. A dead one's history is kept with its files.

        Raises:
            NotFound: The provider holds nothing of it.
        """
        ...

    async def health(self) -> Health:
        """Whether the fleet can be worked with now, and the room it has.

        Raises:
            Unavailable: It does not answer, or is starting.
        """
        ...

    def guest(self, sandbox_id: SandboxId) -> Guest:
        """The inside of a sandbox. Makes no call itself."""
        ...

    async def command_exits(self, command_ids: Sequence[CommandId]) -> dict[CommandId, Exit | None]:
        """How these commands ended; None = still running. Commands the provider never heard of are left out."""
        ...

    def output(
        self, sandbox_id: SandboxId, command_id: CommandId, offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[CommandEvent]:
        """As `Guest.attach`, and also after the sandbox is gone.

        Without `follow` it gives what there is now and ends: with an `Exit` if the command has ended, else without.

        Raises:
            NotFound: No such command here, or its output is no longer kept.
        """
        ...

    async def templates(self) -> Sequence[TemplateState]: ...

    def build_template(self, name: str) -> AsyncIterator[BuildProgress]:
        """Build a template, or follow the build that runs; ends at once when it is ready.

        Raises:
            NotFound: No such template.
            Refused: The build failed; the message has its last lines.
        """
        ...


class Runtime(Protocol):
    """An OCI runtime on this host. Called by the node alone; every verb has a deadline and may be called twice."""

    name: str
    shares_kernel: bool
    needs_id_range: bool  # runs in a user namespace: the bundle carries a range of host ids, the layers are id-mapped

    async def version(self) -> str: ...

    async def probe(self) -> Probe:
        """Boot a real, empty sandbox under a deadline. Never raises: what went wrong is in the probe."""
        ...

    async def expect_start(self) -> None:
        """Prepare what a `start` in the next milliseconds would have to wait for. Never raises; need not be called.

        It is called while the parts of a bundle are being made, and not waited for.
        """
        ...

    async def start(self, bundle: Bundle) -> socket.socket:
        """Create and start the sandbox; the host's end of its stdio socketpair (non-blocking).

        Raises:
            Refused: The runtime would not; the message has its own last words. Nothing is left behind.
        """
        ...

    async def bridge(self, sandbox_id: SandboxId) -> socket.socket:
        """Execute `sbxd bridge` in a running sandbox; a socket joined to its stdio. Closing it ends the bridge.

        Raises:
            SandboxGone: It does not run.
        """
        ...

    async def running(self, sandbox_id: SandboxId) -> bool: ...

    async def wait_dead(self, sandbox_id: SandboxId) -> Cause:
        """Return when the sandbox has died, with why (`oom` told from `runtime_died`)."""
        ...

    async def usage(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Usage]:
        """What these use now, as the host counts it. Those that are gone are left out."""
        ...

    async def oom_kills(self, sandbox_id: SandboxId) -> int:
        """How often the kernel has killed for the sandbox's memory limit. 0 when it is gone."""
        ...

    async def delete(self, sandbox_id: SandboxId) -> None:
        """Kill and remove all the runtime holds of it, cgroups included. Unknown: success."""
        ...

    async def list(self) -> set[SandboxId]:
        """What the runtime knows of this instance, running or not."""
        ...


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
    ) -> Sandbox:
        """Move a sandbox: compare-and-set on (id, state, generation), an event row in the same transaction.

        A sandbox that becomes `destroyed` loses its environment.

        Raises:
            Conflict: The record has moved meanwhile, or the table has no such move.
        """
        ...

    async def add_command(self, command: Command, wanted: Once | None = None) -> CommandId:
        """As `add_sandbox`."""
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
        """Record a startup's command and that it is the latest run. False: `replaces` is not the latest any more."""
        ...

    async def due_startups(self) -> Sequence[Sandbox]:
        """Running sandboxes with a startup command whose generation was not started up yet."""
        ...

    async def add_shell(self, session: ShellSession) -> None: ...

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
