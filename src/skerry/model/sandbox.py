"""A sandbox: what was asked for (`SandboxSpec`), what is recorded (`Sandbox`), what a node reports (`Observed`)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from skerry.model.capture import Archive
from skerry.model.ids import AccountId, ProjectId, SandboxId, SnapshotId
from skerry.model.lifecycle import Cause, State


class NetworkMode(StrEnum):
    BRIDGE = "bridge"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. Every number is enforced by the node, none is advice."""

    memory_mb: int = 512
    cpu_millis: int = 1000  # 1000 = one core
    processes: int = 512
    disk_mb: int = 10_240  # root layer and workspace together
    inodes: int = 1_000_000


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """All that a provider needs to make a sandbox. Complete: defaults were filled in by control."""

    id: SandboxId
    generation: int
    template: str
    limits: Limits
    network_mode: NetworkMode
    hostname: str
    # What sbxd gives to every command. Written down by a node, so no place for secrets: those come with each command.
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a provider made: the runtime that runs it and the exact template it started from."""

    runtime: str
    template_digest: str


@dataclass(frozen=True, slots=True)
class Observed:
    """One sandbox as its provider sees it now. `cause` says why it is not running."""

    id: SandboxId
    generation: int
    running: bool
    cause: Cause | None = None
    detail: str = ""
    stopped: bool = False  # by `stop`: its files are kept, nothing else is


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The record. `generation` rises with each new compute, so that a late answer from an older one is ignored."""

    id: SandboxId
    account_id: AccountId
    project_id: ProjectId
    state: State
    generation: int
    name: str | None
    template: str
    limits: Limits
    timeout_s: int  # a command's default deadline
    network_mode: NetworkMode
    created_at: datetime
    updated_at: datetime
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    capabilities: tuple[str, ...] = ()
    model: Mapping[str, object] | None = None  # stored and echoed, never interpreted
    runtime: str | None = None
    template_digest: str | None = None
    cause: Cause | None = None
    detail: str = ""
    startup_command: str | None = None
    archive: Archive | None = None  # the latest; since a resume the files may have changed
    active_at: datetime | None = None  # the last use that was written down; None: none since it was made
    idle_timeout_s: int = 0  # without use for as long, it is stopped; 0: never
    source: SandboxId | SnapshotId | None = None  # whose files it began with; None: it began empty


@dataclass(frozen=True, slots=True)
class Change:
    """What is replaced in a sandbox's record. None leaves a member as it is; an empty name takes the name away."""

    name: str | None = None
    metadata: Mapping[str, object] | None = None
    env: Mapping[str, str] | None = field(default=None, repr=False)
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which sandboxes: all that is given must hold. `metadata` with the value None asks for the entry alone.

    `busy` is about the running ones only: those with a command, or those without.
    """

    busy: bool | None = None
    metadata: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    name: str | None = None
    id_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Promised:
    """What an account's sandboxes of one state may use together."""

    state: State
    sandboxes: int
    memory_mb: int
    cpu_millis: int
    disk_mb: int


def labels_of(metadata: Mapping[str, object]) -> dict[str, str]:
    """The entries of a sandbox's metadata that lists can be filtered by: strings, numbers and booleans, as text."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
        if isinstance(value, str | int | float | bool)
    }
