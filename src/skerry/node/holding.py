"""A sandbox as the supervisor has it in memory: its record, who changes it, and the way into it while it runs."""

import asyncio
from dataclasses import dataclass, field

from skerry.guest.sbxd_guest import SbxdGuest
from skerry.node.commands import Runner, Strangers
from skerry.node.records import Record


@dataclass(slots=True, eq=False)
class Holding:
    """`lock` is held by whoever changes it, `users` use or await it; `scope` times a create."""

    record: Record | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    scope: asyncio.Timeout | None = None
    unwanted: bool = False  # a destroy waits for the lock
    guest: SbxdGuest | None = None
    runner: Runner | None = None
    strangers: Strangers | None = None
