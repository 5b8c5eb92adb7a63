"""A snapshot: a named capture of a sandbox's workspace with its configuration. It outlives the sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from skerry.model.capture import Archive
from skerry.model.errors import Conflict
from skerry.model.ids import AccountId, ProjectId, SandboxId, SnapshotId
from skerry.model.sandbox import Limits, NetworkMode


class SnapshotState(StrEnum):
    """CREATING: perhaps half-made. READY: sandboxes can be made from it. DELETING: all of it has to go."""

    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The record. `archive` is None until the object store has it; until then the node alone holds its files."""

    id: SnapshotId
    account_id: AccountId
    project_id: ProjectId
    state: SnapshotState
    name: str | None
    source_sandbox_id: SandboxId
    template: str
    limits: Limits
    timeout_s: int
    network_mode: NetworkMode
    created_at: datetime
    updated_at: datetime
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    startup_command: str | None = None
    idle_timeout_s: int = 0
    capabilities: tuple[str, ...] = ()
    size_bytes: int | None = None  # of the files; None until it has been counted
    archive: Archive | None = None
    detail: str = ""  # why it is not in the object store yet


def too_many(most: int) -> Conflict:
    """What an account is told that has as many snapshots as it may have."""
    return Conflict(
        f"This account has {most} snapshots, as many as it may have. Delete some, or raise the server's"
        " 'max_snapshots_per_account'.",
        code="too_many_snapshots",
    )
