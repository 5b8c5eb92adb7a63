"""Remembers when sandboxes were used and what is in use now. What it knows is written down by the reconciler."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from skerry.model.ids import SandboxId

# How exact `active_at` is: a sandbox that is used all the time is written down this often.
NOTE_EVERY = timedelta(seconds=15)


class Uses:
    """Of this process. Holds a time of each sandbox that was used and not written down since."""

    def __init__(self) -> None:
        self._open: Counter[SandboxId] = Counter()
        self._used: dict[SandboxId, datetime] = {}
        self._written: dict[SandboxId, datetime] = {}

    def note(self, sandbox_id: SandboxId, at: datetime) -> None:
        self._used[sandbox_id] = at

    def begin(self, sandbox_id: SandboxId, at: datetime) -> None:
        self._open[sandbox_id] += 1
        self.note(sandbox_id, at)

    def end(self, sandbox_id: SandboxId, at: datetime) -> None:
        self._open[sandbox_id] -= 1
        if self._open[sandbox_id] <= 0:
            del self._open[sandbox_id]
        self.note(sandbox_id, at)

    def in_use(self, sandbox_id: SandboxId) -> bool:
        return sandbox_id in self._open

    def last(self, sandbox_id: SandboxId) -> datetime | None:
        """The last use that may not be on record yet."""
        return self._used.get(sandbox_id)

    def unwritten(self, now: datetime) -> Mapping[SandboxId, datetime]:
        """Uses that are to be written down. What is in use is used now."""
        for sandbox_id in self._open:
            self._used[sandbox_id] = now
        self._written = {each: at for each, at in self._written.items() if now - at < NOTE_EVERY}
        return {each: at for each, at in self._used.items() if each not in self._written}

    def written(self, used: Mapping[SandboxId, datetime], now: datetime) -> None:
        """These uses are on record."""
        for sandbox_id, at in used.items():
            self._written[sandbox_id] = now
            if self._used.get(sandbox_id) == at:
                del self._used[sandbox_id]
