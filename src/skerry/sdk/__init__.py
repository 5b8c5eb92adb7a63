"""The client of a Skerry server: `Skerry` (blocking) and `AsyncSkerry`. Knows HTTP and the wire, no server code.

The asynchronous half in `_async/` is the source; `_sync/` is generated from it by `scripts/generate_sync.py`.
Names are imported on first use, so that `import skerry` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from skerry.sdk._async.attachments import AsyncAttachment
    from skerry.sdk._async.client import AsyncSkerry
    from skerry.sdk._async.commands import AsyncRunningCommand
    from skerry.sdk._async.listing import AsyncListing
    from skerry.sdk._async.sandbox import AsyncSandbox
    from skerry.sdk._async.shells import AsyncShell
    from skerry.sdk._async.snapshots import AsyncSnapshot
    from skerry.sdk._async.terminals import AsyncTerminal
    from skerry.sdk._sync.attachments import Attachment
    from skerry.sdk._sync.client import Skerry
    from skerry.sdk._sync.commands import RunningCommand
    from skerry.sdk._sync.listing import Listing
    from skerry.sdk._sync.sandbox import Sandbox
    from skerry.sdk._sync.shells import Shell
    from skerry.sdk._sync.snapshots import Snapshot
    from skerry.sdk._sync.terminals import Terminal
    from skerry.sdk.attachment import Ended
    from skerry.sdk.changes import FileChange
    from skerry.sdk.errors import CommandFailed, Unreachable
    from skerry.sdk.results import BuildLine, CommandResult, Lost, Output, ShellResult
    from skerry.sdk.transfers import Skipped, Transfer
    from skerry.wire.files import FileEntry

_ERRORS = "skerry.model.errors"
_HOMES = {
    "AsyncSkerry": "skerry.sdk._async.client",
    "AsyncSandbox": "skerry.sdk._async.sandbox",
    "AsyncRunningCommand": "skerry.sdk._async.commands",
    "AsyncListing": "skerry.sdk._async.listing",
    "AsyncShell": "skerry.sdk._async.shells",
    "AsyncSnapshot": "skerry.sdk._async.snapshots",
    "Snapshot": "skerry.sdk._sync.snapshots",
    "AsyncAttachment": "skerry.sdk._async.attachments",
    "AsyncTerminal": "skerry.sdk._async.terminals",
    "Attachment": "skerry.sdk._sync.attachments",
    "Terminal": "skerry.sdk._sync.terminals",
    "Ended": "skerry.sdk.attachment",
    "Skerry": "skerry.sdk._sync.client",
    "Listing": "skerry.sdk._sync.listing",
    "Shell": "skerry.sdk._sync.shells",
    "FileChange": "skerry.sdk.changes",
    "ShellResult": "skerry.sdk.results",
    "Skipped": "skerry.sdk.transfers",
    "Transfer": "skerry.sdk.transfers",
    "Sandbox": "skerry.sdk._sync.sandbox",
    "RunningCommand": "skerry.sdk._sync.commands",
    "CommandFailed": "skerry.sdk.errors",
    "Unreachable": "skerry.sdk.errors",
    "BuildLine": "skerry.sdk.results",
    "CommandResult": "skerry.sdk.results",
    "Lost": "skerry.sdk.results",
    "Output": "skerry.sdk.results",
    "FileEntry": "skerry.wire.files",
    "Conflict": _ERRORS,
    "DeadlineExceeded": _ERRORS,
    "GuestError": _ERRORS,
    "Invalid": _ERRORS,
    "LimitExceeded": _ERRORS,
    "NotFound": _ERRORS,
    "ProtocolError": _ERRORS,
    "Refused": _ERRORS,
    "SandboxGone": _ERRORS,
    "SkerryError": _ERRORS,
    "TooBusy": _ERRORS,
    "Unauthorized": _ERRORS,
    "Unavailable": _ERRORS,
}

__all__ = [
    "AsyncAttachment",
    "AsyncListing",
    "AsyncRunningCommand",
    "AsyncSandbox",
    "AsyncShell",
    "AsyncSkerry",
    "AsyncSnapshot",
    "AsyncTerminal",
    "Attachment",
    "BuildLine",
    "CommandFailed",
    "CommandResult",
    "Conflict",
    "DeadlineExceeded",
    "Ended",
    "FileChange",
    "FileEntry",
    "GuestError",
    "Invalid",
    "LimitExceeded",
    "Listing",
    "Lost",
    "NotFound",
    "Output",
    "ProtocolError",
    "Refused",
    "RunningCommand",
    "Sandbox",
    "SandboxGone",
    "Shell",
    "ShellResult",
    "Skerry",
    "SkerryError",
    "Skipped",
    "Snapshot",
    "Terminal",
    "TooBusy",
    "Transfer",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'skerry.sdk' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
