"""Snapshots on the wire (snake_case), with the published client's members."""

from datetime import datetime

from pydantic import Field

from skerry.model.sandbox import NetworkMode
from skerry.wire.base import Answer, PersonalName, Request


class CreateSnapshot(Request):
    """POST /v1/sandboxes/{id}/snapshots. The body may be left out."""

    # For people. Several snapshots may have the same one.
    name: PersonalName | None = None


class SnapshotView(Answer):
    """`status`: `creating`, `ready` (sandboxes can be made from it), `deleting`.

    `archived` says whether the object store has it; until then the machine alone does, and `detail` tells what keeps
    it. `size_bytes` is of its files, 0 until they were counted; `stored_bytes` what it took in the object store beside
    what was there already, null until it is there. `name` is empty where none was given. `env` has its values where
    one snapshot is asked for; in lists each value is `[redacted]`.
    """

    id: str
    name: str
    status: str
    archived: bool
    detail: str | None = None
    source_sandbox_id: str
    template: str
    memory_mb: int
    cpu_millis: int
    disk_mb: int
    timeout_seconds: int
    network_mode: NetworkMode
    env: dict[str, str] = Field(repr=False)
    startup_command: str | None = None
    idle_timeout_seconds: int = 0
    capabilities: list[str]
    size_bytes: int
    stored_bytes: int | None = None
    created_at: datetime
    updated_at: datetime
