"""What commands give back, as plain values: `Output` and `Lost` while one runs, `CommandResult` at its end."""

import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from skerry.sdk.errors import CommandFailed
from skerry.wire.commands import CommandView

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
        return f"is {self.status}" + (f" ({self.reason}: {self.message})" if self.reason else "")

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would show: the command's, 128 + signal, 124 after a deadline, else 125."""
        if self.timed_out:
            return 124
        if self.exit_code is not None:
            return self.exit_code
        return 128 + self.signal if self.signal is not None else 125

    def check(self) -> "CommandResult":
        """Itself, where the exit code is 0.

        Raises:
            CommandFailed: Any other end; the message has the last of stderr.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


def result_from(
    view: CommandView, stdout: bytes | None = None, stderr: bytes | None = None, lost_bytes: int = 0
) -> CommandResult:
    """The result in an answer; the output, and how much of it is lost, are given where it was streamed."""
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
        lost_bytes=max(view.lost_bytes, lost_bytes),
        duration_ms=view.duration_ms,
        started_at=view.started_at,
        completed_at=view.completed_at,
    )


def _exact(text: str, exact: str | None) -> bytes:
    return base64.b64decode(exact) if exact is not None else text.encode()
