"""What every verb is handed: the seams, the settings, and what this process is doing right now. Decides nothing."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from skerry.config import Config
from skerry.control.keys import KeyCache
from skerry.control.progress import Progress
from skerry.control.tasks import Tasks
from skerry.control.telemetry import Telemetry
from skerry.model.ids import AccountId, CommandId, SandboxId, ShellId, SnapshotId
from skerry.seams import Clock, Provider, Store


@dataclass(frozen=True, slots=True)
class Deps:
    """One per process. `creating`, `following` and `shells` name what a task of this process is at work on.

    `attempts` are the requests under a key of their client's that are being answered: a second one waits for the first.
    They are no truth, only a reason for the reconciler to leave something alone: after a crash they are empty, and what
    is half-done is found in the records. `sole` says that no other process works on the same database.
    """

    store: Store
    provider: Provider
    clock: Clock
    config: Config
    sole: bool = True
    telemetry: Telemetry = field(default_factory=Telemetry)
    tasks: Tasks = field(default_factory=Tasks)
    keys: KeyCache = field(default_factory=KeyCache)
    creating: set[SandboxId] = field(default_factory=set[SandboxId])
    following: set[CommandId] = field(default_factory=set[CommandId])
    shells: set[ShellId] = field(default_factory=set[ShellId])
    attempts: dict[tuple[AccountId, str], tuple[str, asyncio.Task[Any]]] = field(
        default_factory=dict[tuple[AccountId, str], tuple[str, asyncio.Task[Any]]]
    )
    progress: dict[SandboxId | SnapshotId, Progress] = field(default_factory=dict[SandboxId | SnapshotId, Progress])
    known_templates: set[str] = field(default_factory=set[str])
