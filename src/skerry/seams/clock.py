"""Time, as everything that waits or dates sees it."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Time. Tests move it."""

    def now(self) -> datetime:
        """The time, aware, UTC."""
        ...

    async def sleep_until(self, when: datetime) -> None: ...
