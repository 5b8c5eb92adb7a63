"""What the client raises: the tree of `skerry.model.errors`, plus what only a client can meet. Never an HTTP library's.

Unavailable
└── Unreachable      nothing answers at the server's address, or the connection broke under the call
SkerryError
└── CommandFailed    raised by `CommandResult.check()` alone: a command's failure is a result, not an error
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from skerry.model.errors import (
    Conflict,
    DeadlineExceeded,
    GuestError,
    Invalid,
    LimitExceeded,
    NotFound,
    ProtocolError,
    Refused,
    SandboxGone,
    SkerryError,
    TooBusy,
    Unauthorized,
    Unavailable,
)

if TYPE_CHECKING:
    from skerry.sdk.results import CommandResult, ShellResult


class Unreachable(Unavailable):
    """No answer. When it is raised by a call that is not idempotent, the server may have acted on the call."""

    code = "unreachable"


class CommandFailed(SkerryError):
    """A command did not end with exit code 0. `result` has its output."""

    code = "command_failed"

    def __init__(self, result: "CommandResult | ShellResult") -> None:
        super().__init__(f"Command {result.id} {result.ending}. {result.stderr[-2000:]}".rstrip())
        self.result = result


_BY_STATUS: dict[int, Callable[..., SkerryError]] = {
    400: Invalid,
    401: Unauthorized,
    402: LimitExceeded,
    403: Refused,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    416: Invalid,
    422: Invalid,
    501: Refused,
    503: Unavailable,
    504: DeadlineExceeded,
}

# sbxd's codes that name nothing but a failure inside (sbxd/PROTOCOL.md, "Errors").
_GUEST_CODES = frozenset(
    {
        "cross_device",
        "cwd",
        "exists",
        "io",
        "is_a_directory",
        "limit",
        "loop",
        "name_too_long",
        "no_space",
        "not_a_directory",
        "not_a_file",
        "not_empty",
        "permission",
        "quota",
        "read_only",
        "user",
    }
)


def error_from(status: int, body: bytes, retry_after: str | None = None) -> SkerryError:
    """The error that an answer of the server stands for."""
    code, message, field = _envelope(status, body)
    if status == 429 or code == "disk_full":  # the machine's disk: room comes when sandboxes go
        return TooBusy(message, retry_after_s=_seconds(retry_after), code=code)
    if code == "sandbox_gone":
        return SandboxGone(message)
    if code in _GUEST_CODES:
        return GuestError(code, message)
    if code == Refused.code:
        return Refused(message, field=field)
    made = _BY_STATUS.get(status, Unavailable if status >= 500 else SkerryError)
    return made(message, code=code, field=field)


def error_told(data: bytes) -> SkerryError:
    """The error that an event of a stream stands for."""
    try:
        given: Any = json.loads(data)
        code, message = str(given["code"]), str(given["message"])
    except (ValueError, KeyError, TypeError):
        return ProtocolError("The server told of an error in a form that is not known.")
    return error_of(code, message)


def error_of(code: str, message: str, field: str | None = None) -> SkerryError:
    """The error that a code stands for where no status says more."""
    if code in _GUEST_CODES:
        return GuestError(code, message)
    kinds: dict[str, Callable[..., SkerryError]] = {
        kind.code: kind for kind in (Conflict, DeadlineExceeded, Invalid, NotFound, Refused, TooBusy, Unavailable)
    }
    error = SandboxGone(message) if code == SandboxGone.code else kinds.get(code, SkerryError)(message, code=code)
    error.field = field
    return error


def _envelope(status: int, body: bytes) -> tuple[str, str, str | None]:
    try:
        given: Any = json.loads(body)
        error = cast(dict[str, Any], given["error"])
        return str(error["code"]), str(error["message"]), error.get("field")
    except (ValueError, KeyError, TypeError, AttributeError):
        text = body[:300].decode("utf-8", "replace").strip() or "(empty)"
        return f"http_{status}", f"The answer was {status}, and not in Skerry's form: {text}", None


def _seconds(retry_after: str | None) -> float:
    try:
        return min(max(float(retry_after or 1.0), 0.0), 60.0)
    except ValueError:
        return 1.0
