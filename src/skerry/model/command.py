"""A command: what is run (`ExecSpec`), what comes out (`Output`, `Lost`, `Exit`), what is recorded (`Command`)."""

from collections.abc import Mapping
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
    """What a command is run for. A sandbox is `active` while one of kind `command` runs: a startup is no activity."""

    COMMAND = "command"
    STARTUP = "startup"


class CommandCause(StrEnum):
    """Why a command is `failed`."""

    NOT_STARTED = "not_started"
    SIGNAL = "signal"
    OOM = "oom"
    SANDBOX_GONE = "sandbox_gone"
    UNKNOWN = "unknown"  # it ended, and its status is lost


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


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of one channel. `offset` is the first byte's position in the command's output, both channels together."""

    channel: int  # 1 stdout (and everything of a PTY), 2 stderr
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes that existed and are gone (beyond the cap, or lost with a node): `length` bytes from `offset`."""

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
    """The record of a command. It outlives its sandbox."""

    id: CommandId
    sandbox_id: SandboxId
    account_id: AccountId
    command: str  # as given; argv joined for display
    status: CommandStatus
    working_directory: str
    timeout_s: int  # 0: no deadline
    started_at: datetime
    completed_at: datetime | None = None
    exit: Exit | None = None
    kind: CommandKind = CommandKind.COMMAND
