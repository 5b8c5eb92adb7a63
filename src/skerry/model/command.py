"""A command: what is run (`ExecSpec`), what comes out (`Output`, `Lost`, `Exit`), what is recorded (`Command`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from skerry.model.ids import AccountId, CommandId, SandboxId


class CommandStatus(StrEnum):
    """`completed` says nothing about the exit code; `failed` = could not be run, or was killed by a signal."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"


class CommandKind(StrEnum):
    """What a command is run for. A sandbox is `active` while one of kind `command` runs, and not for the others."""

    COMMAND = "command"
    STARTUP = "startup"
    TERMINAL = "terminal"


class CommandCause(StrEnum):
    """Why a command is `failed`."""

    NOT_STARTED = "not_started"
    SIGNAL = "signal"
    OOM = "oom"
    SANDBOX_GONE = "sandbox_gone"
    UNKNOWN = "unknown"  # it ended, and its status is lost


class Keep(StrEnum):
    """Which part of an output is kept, once it is more than a node keeps of one command.

    `unread` is a tail that loses nothing to a reader who keeps on reading: the command waits for whoever follows, and
    for a minute for somebody to come (back). Then it goes on as with `tail`.
    """

    HEAD = "head"
    TAIL = "tail"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """A PTY's size in character cells; 0 is read as 80 columns, 24 rows."""

    cols: int = 80
    rows: int = 24


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """One command. Exactly one of `argv` and `shell` is set. Running the same `id` twice starts it once."""

    id: CommandId
    argv: tuple[str, ...] = ()
    shell: str | None = None
    cwd: str | None = None  # None: /workspace, or / where that cannot be entered
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # laid over the sandbox's own
    user: str | None = None
    stdin: bool = False
    tty: TerminalSize | None = None
    timeout_s: float | None = None
    keep: Keep = Keep.HEAD


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of one channel. `offset` is the first byte's position in the command's output, both channels together."""

    channel: int  # 1 stdout (and everything of a PTY), 2 stderr
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes that existed and are not kept (beyond the cap, or lost with a node): `length` bytes from `offset`."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended. `code` and `signal` exclude each other; both None: not known, and `cause` says why."""

    code: int | None
    signal: int | None
    timed_out: bool
    offset: int  # bytes of output, both channels
    duration_ms: int
    cause: CommandCause | None = None
    detail: str = ""


CommandEvent = Output | Lost | Exit


def status_of(exit: Exit) -> CommandStatus:
    """The status that an ended command is recorded and shown with."""
    if exit.timed_out:
        return CommandStatus.TIMEOUT
    return CommandStatus.COMPLETED if exit.code is not None else CommandStatus.FAILED


@dataclass(frozen=True, slots=True)
class Command:
    """The record of a command. It outlives its sandbox. A command with a `terminal` is one, of that size."""

    id: CommandId
    sandbox_id: SandboxId
    account_id: AccountId
    command: str  # as given; argv joined for display
    status: CommandStatus
    working_directory: str
    timeout_s: int | None  # None: it may run as long as its sandbox
    started_at: datetime
    completed_at: datetime | None = None
    exit: Exit | None = None
    takes_input: bool = False  # its stdin stays open for what clients send
    terminal: TerminalSize | None = None
    name: str | None = None  # a terminal's, for people
    kind: CommandKind = CommandKind.COMMAND


@dataclass(frozen=True, slots=True)
class CommandFilter:
    """Which commands of a list: of these statuses, of these kinds (None: any), made before that one."""

    statuses: Sequence[CommandStatus] | None = None
    kinds: Sequence[CommandKind] | None = None
    before: CommandId | None = None


ANY_COMMAND = CommandFilter()
