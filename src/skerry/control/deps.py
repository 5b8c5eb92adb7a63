"""What every verb is handed: the seams, the settings, and what this process is doing right now. Decides nothing."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from skerry.config import Config
from skerry.control.keys import KeyCache
from skerry.control.progress import Progress
from skerry.control.retries import Retries
from skerry.control.tasks import Tasks
from skerry.control.telemetry import Telemetry
from skerry.control.uses import Uses
from skerry.model.ids import AccountId, CommandId, SandboxId, ShellId, SnapshotId, TreeId
from skerry.model.sandbox import Sandbox
from skerry.seams import Clock, Provider, Store

# Archives of one account that are asked for at once. The node gives turns to all accounts' in a fair order.
ARCHIVES_AT_ONCE = 4


@dataclass(slots=True)
class Work:
    """What tasks of this process are at work on. No truth, only a reason to leave something alone, or to wait for it:
    after a crash it is empty, and what is half-done is found in the records.
    """

    stopping: dict[tuple[SandboxId, int], asyncio.Task[Sandbox]] = field(
        default_factory=dict[tuple[SandboxId, int], asyncio.Task[Sandbox]]
    )
    taking: set[SnapshotId] = field(default_factory=set[SnapshotId])  # snapshots that are being made
    storing: dict[SnapshotId, asyncio.Task[None]] = field(default_factory=dict[SnapshotId, asyncio.Task[None]])
    held: set[TreeId] = field(default_factory=set[TreeId])  # trees that are held for as long as copies are made
    dropping: dict[TreeId, asyncio.Task[None]] = field(default_factory=dict[TreeId, asyncio.Task[None]])
    archiving: dict[AccountId, int] = field(default_factory=dict[AccountId, int])  # how many, by account
    swept: dict[AccountId, datetime] = field(default_factory=dict[AccountId, datetime])
    unswept: dict[AccountId, str] = field(default_factory=dict[AccountId, str])  # why the last sweep failed
    gates: WeakValueDictionary[AccountId, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary[AccountId, asyncio.Semaphore]
    )

    def gate(self, account_id: AccountId) -> asyncio.Semaphore:
        """What bounds the archives of one account: no other account's wait behind them."""
        return self.gates.setdefault(account_id, asyncio.Semaphore(ARCHIVES_AT_ONCE))


@dataclass(frozen=True, slots=True)
class Deps:
    """One per process. `creating`, `coming_up`, `following`, `shells` and `work` name what it is at work on.

    `coming_up` are the tasks that make or resume a sandbox, for whoever waits for one. `attempts` are the requests
    under a key of their client's that are being answered: a second one waits for the first. `sole` says that no other
    process works on the same database.
    """

    store: Store
    provider: Provider
    clock: Clock
    config: Config
    sole: bool = True
    telemetry: Telemetry = field(default_factory=Telemetry)
    tasks: Tasks = field(default_factory=Tasks)
    keys: KeyCache = field(default_factory=KeyCache)
    uses: Uses = field(default_factory=Uses)
    retries: Retries = field(default_factory=Retries)
    work: Work = field(default_factory=Work)
    creating: set[SandboxId] = field(default_factory=set[SandboxId])
    coming_up: dict[SandboxId, asyncio.Task[Sandbox]] = field(default_factory=dict[SandboxId, asyncio.Task[Sandbox]])
    following: set[CommandId] = field(default_factory=set[CommandId])
    shells: set[ShellId] = field(default_factory=set[ShellId])
    attempts: dict[tuple[AccountId, str], tuple[str, asyncio.Task[Any]]] = field(
        default_factory=dict[tuple[AccountId, str], tuple[str, asyncio.Task[Any]]]
    )
    progress: dict[SandboxId | SnapshotId, Progress] = field(default_factory=dict[SandboxId | SnapshotId, Progress])
    known_templates: set[str] = field(default_factory=set[str])
