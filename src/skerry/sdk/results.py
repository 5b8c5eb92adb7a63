"""What commands give back, as plain values: `Output` and `Lost` while one runs, `CommandResult` at its end."""

import base64
import binascii
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from skerry.model.errors import ProtocolError, Refused
from skerry.sdk.errors import CommandFailed
from skerry.sdk.sse import ServerEvent
from skerry.wire.commands import CommandView
from skerry.wire.shells import SessionResult

Stream = Literal["stdout", "stderr"]
COLLECT_BYTES = 1 << 20  # kept of each stream in a result, as the server does


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes as they were written. `end` is the position behind them in the output of both streams together."""

    stream: Stream
    data: bytes
    end: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes that existed and are not kept: `length` of them, from `offset`."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class BuildLine:
    """One step of a template's build. `fraction` is 0…1 and never falls."""

    fraction: float
    line: str


NOT_STARTED = "not_started"
# `message` begins with a code where a command was not started; these are about the place, the user and the sandbox.
_NOT_THE_PROGRAM = ("cwd", "user", "limit", "busy")


def shell_code(
    exit_code: int | None, signal: int | None, reason: str | None, message: str | None, *, timed_out: bool
) -> int:
    """The exit code that a shell would show for an end of a command.

    Its own; 128 + signal; 124 after its deadline; 127 where the program was not found, 126 where it could not be run;
    else 125.
    """
    if timed_out:
        return 124
    if exit_code is not None:
        return exit_code
    if signal is not None:
        return 128 + signal
    code, _ = _told(message)
    if reason != NOT_STARTED or not code or code in _NOT_THE_PROGRAM:
        return 125
    return 127 if code == "not_found" else 126


def _told(message: str | None) -> tuple[str, str]:
    """The code that a message begins with, if it does, and the words."""
    code, colon, words = (message or "").partition(": ")
    return (code, words) if colon and code.isidentifier() and code.islower() else ("", message or "")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `exit_code` and `signal` exclude each other; both None: see `reason` and `message`.

    `stdout_bytes` and `stderr_bytes` are exact; beyond 1 MiB each they are cut (`truncated`), and
    `commands.events(id)` has all. `lost_bytes` counts output beyond the server's cap, which nobody has.
    """

    id: str
    status: str
    exit_code: int | None
    signal: int | None
    reason: str | None
    message: str | None
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    truncated: bool
    output_bytes: int
    lost_bytes: int
    duration_ms: int | None
    started_at: datetime
    completed_at: datetime | None

    @property
    def stdout(self) -> str:
        """Text; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Text; bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.status == "timeout"

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.timed_out:
            return "ran into its deadline"
        if self.signal is not None:
            return f"was killed by signal {self.signal}" + (f" ({self.reason})" if self.reason == "oom" else "")
        if self.exit_code is not None:
            return f"ended with exit code {self.exit_code}"
        if self.reason == NOT_STARTED:
            return f"could not be started: {_told(self.message)[1]}".rstrip(".")
        return f"is {self.status}" + (f" ({self.reason}: {self.message})" if self.reason else "")

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would show, see `shell_code`."""
        return shell_code(self.exit_code, self.signal, self.reason, self.message, timed_out=self.timed_out)

    def check(self) -> "CommandResult":
        """Itself, where the exit code is 0.

        Raises:
            CommandFailed: Any other end; the message has the last of stderr.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How a command in a shell session ended. `exit_code` is as a shell tells it: 124 after the deadline, 128 + signal.

    `cwd` is where the session is now. `saved` is False where the command left directory and variables as they were
    before it: it was killed, replaced its shell, or exported more than can be kept.
    """

    id: str
    exit_code: int
    cwd: str
    saved: bool
    status: str
    signal: int | None
    reason: str | None
    message: str | None
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    truncated: bool
    duration_ms: int | None

    @property
    def stdout(self) -> str:
        """Text; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Text; bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        why = f" ({self.status}{f', {self.reason}' if self.reason else ''})" if self.status != "completed" else ""
        return f"ended with exit code {self.exit_code}{why}"

    def check(self) -> "ShellResult":
        """Itself, where the exit code is 0.

        Raises:
            CommandFailed: Any other end; the message has the last of stderr.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


def shell_result_from(view: SessionResult) -> ShellResult:
    """The result in an answer."""
    return ShellResult(
        id=view.command_id,
        exit_code=view.exit_code,
        cwd=view.cwd,
        saved=view.saved,
        status=view.status.value,
        signal=view.signal,
        reason=view.reason,
        message=view.message,
        stdout_bytes=_exact(view.stdout, view.stdout_base64),
        stderr_bytes=_exact(view.stderr, view.stderr_base64),
        truncated=view.stdout_truncated or view.stderr_truncated,
        duration_ms=view.duration_ms,
    )


def build_line_from(event: ServerEvent) -> BuildLine | None:
    """What an event of a build tells; None: nothing of its own.

    Raises:
        Refused: The build failed; the message has its last lines.
    """
    if event.name not in ("progress", "error"):
        return None
    try:
        body = json.loads(event.data)
        if event.name == "progress":
            return BuildLine(float(body["fraction"]), str(body["line"]))
        code, message = str(body["code"]), str(body["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError("The server told of a build in a form that is not known.") from error
    raise Refused(message, code=code)


def result_from(view: CommandView, stdout: bytes | None = None, stderr: bytes | None = None) -> CommandResult:
    """The result in an answer; the output is given where it was streamed."""
    out = _exact(view.stdout, view.stdout_base64) if stdout is None else stdout
    err = _exact(view.stderr, view.stderr_base64) if stderr is None else stderr
    return CommandResult(
        id=view.id,
        status=view.status.value,
        exit_code=view.exit_code,
        signal=view.signal,
        reason=view.reason,
        message=view.message,
        stdout_bytes=out,
        stderr_bytes=err,
        truncated=view.stdout_truncated or view.stderr_truncated or len(out) + len(err) < view.output_bytes,
        output_bytes=view.output_bytes,
        lost_bytes=view.lost_bytes,
        duration_ms=view.duration_ms,
        started_at=view.started_at,
        completed_at=view.completed_at,
    )


def _exact(text: str, exact: str | None) -> bytes:
    try:
        return base64.b64decode(exact) if exact is not None else text.encode("utf-8", "surrogatepass")
    except binascii.Error as error:
        raise ProtocolError("The server sent output that is no base64.") from error
