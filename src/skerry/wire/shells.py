"""Shell sessions on the wire (snake_case), with the published client's members."""

from datetime import datetime

from pydantic import Field

from skerry.model.command import CommandStatus
from skerry.wire.base import Answer, Request


class SessionView(Answer):
    """`command_id` is the command that the session runs now, or whose traces are yet to be taken in."""

    id: str
    sandbox_id: str
    cwd: str
    command_id: str | None = None
    created_at: datetime
    last_used_at: datetime


class SessionList(Answer):
    """GET /v1/sandboxes/{id}/sessions, oldest first."""

    data: list[SessionView]


class SessionExec(Request):
    """POST /v1/sessions/{id}/exec."""

    command: str = Field(min_length=1, max_length=98_304, pattern=r"^[^\x00]*$")
    timeout_seconds: int | None = Field(None, ge=1)


class SessionResult(Answer):
    """`exit_code` is always a number: 124 after the deadline, 128 + n after signal n, 126 when the command could not be
    started or its end is not known; `status`, `signal`, `reason` and `message` say it exactly, as in a `CommandView`.

    `saved` is false when the command left directory and variables as they were before: it was killed, replaced its
    shell (`exec`), or exported more than can be kept (64 KiB). `stdout` and `stderr` as in a `CommandView`.
    """

    session_id: str
    command_id: str
    stdout: str
    stderr: str
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    exit_code: int
    cwd: str
    saved: bool
    status: CommandStatus
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    duration_ms: int | None = None
