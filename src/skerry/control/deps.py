"""What every verb is handed: the seams, the settings, and what this process is doing right now. Decides nothing."""

from dataclasses import dataclass, field

from skerry.config import Config
from skerry.control.keys import KeyCache
from skerry.control.tasks import Tasks
from skerry.model.ids import CommandId, SandboxId, ShellId
from skerry.seams import Clock, Provider, Store


@dataclass(frozen=True, slots=True)
class Deps:
    """One per process. `creating`, `following` and `shells` name what a task of this process is at work on.

    They are no truth, only a reason for the reconciler to leave something alone: after a crash they are empty, and what
    is half-done is found in the records. `sole` says that no other process works on the same database.
    """

    store: Store
    provider: Provider
    clock: Clock
    config: Config
    sole: bool = True
    tasks: Tasks = field(default_factory=Tasks)
    keys: KeyCache = field(default_factory=KeyCache)
    creating: set[SandboxId] = field(default_factory=set[SandboxId])
    following: set[CommandId] = field(default_factory=set[CommandId])
    shells: set[ShellId] = field(default_factory=set[ShellId])
    known_templates: set[str] = field(default_factory=set[str])
