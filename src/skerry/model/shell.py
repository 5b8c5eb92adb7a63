"""A shell session: what one command leaves to the next, its working directory and its exported variables.

A session has no process. What persists are the differences to the sandbox's own environment, so that a variable which
the session never touched follows the sandbox's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from skerry.model.errors import Conflict
from skerry.model.ids import AccountId, CommandId, SandboxId, ShellId

WORKSPACE = "/workspace"
MOST_SHELLS = 256  # sessions a sandbox


@dataclass(frozen=True, slots=True)
class ShellState:
    """Bytes that are not UTF-8 stand as lone surrogates (`surrogateescape`). The variables are secrets."""

    cwd: str = WORKSPACE
    set: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    unset: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ShellSession:
    """The record. `command_id` is the command that has the session now, `token` names what that leaves behind."""

    id: ShellId
    sandbox_id: SandboxId
    account_id: AccountId
    created_at: datetime
    used_at: datetime
    state: ShellState = field(default_factory=ShellState)
    command_id: CommandId | None = None
    token: str | None = field(default=None, repr=False)


def too_many(sandbox_id: SandboxId) -> Conflict:
    """What a store says to one session more than a sandbox may have."""
    return Conflict(
        f"Sandbox '{sandbox_id}' has {MOST_SHELLS} sessions. Delete those that are not needed.",
        code="too_many_sessions",
    )
