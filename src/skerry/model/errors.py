"""Every error that Skerry raises on purpose, from the model to the node. HTTP statuses are in `api/errors.py` only.

SkerryError
├── Invalid              the request is wrong; `field` names the member
├── Unauthorized         no key, or a wrong one
├── NotFound             absent, or not yours (never told apart)
├── Conflict             the thing is in a state that does not allow it
├── LimitExceeded        a plan's limit
├── Refused              this host, runtime or provider cannot do it, or may not
├── TooBusy              try again later; `retry_after_s`
├── Unavailable          a part of Skerry does not answer (the node, the store)
├── SandboxGone          the sandbox died or was destroyed under the call; `cause`
├── GuestError           the operation was tried inside and failed; `guest_code` as in sbxd/PROTOCOL.md
├── ProtocolError        a peer spoke nonsense (hostile or of another version)
└── DeadlineExceeded     something outside did not answer in time
"""


class SkerryError(Exception):
    """The base. `code` is stable and machine-readable, `message` is for a person: what, why, what to do."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        if code is not None:
            self.code = code


class Invalid(SkerryError):
    code = "invalid"


class Unauthorized(SkerryError):
    code = "unauthorized"


class NotFound(SkerryError):
    code = "not_found"


class Conflict(SkerryError):
    code = "conflict"


class LimitExceeded(SkerryError):
    code = "limit_exceeded"


class Refused(SkerryError):
    code = "refused"


class TooBusy(SkerryError):
    code = "too_busy"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class Unavailable(SkerryError):
    code = "unavailable"


class SandboxGone(SkerryError):
    code = "sandbox_gone"

    def __init__(self, message: str, *, cause: str = "runtime_died") -> None:
        super().__init__(message)
        self.cause = cause


class GuestError(SkerryError):
    code = "guest_error"

    def __init__(self, guest_code: str, message: str, *, errno: int | None = None) -> None:
        super().__init__(message, code=guest_code)
        self.guest_code = guest_code
        self.errno = errno


class ProtocolError(SkerryError):
    code = "protocol"


class DeadlineExceeded(SkerryError):
    code = "deadline_exceeded"
