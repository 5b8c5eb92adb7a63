"""A clock that stands still until a test moves it."""

import asyncio
from datetime import UTC, datetime, timedelta


class ManualClock:
    """`advance` moves the time and wakes who waits for it; `sleepers` counts those still waiting."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._waiting: list[tuple[datetime, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    @property
    def sleepers(self) -> int:
        return sum(not future.done() for _, future in self._waiting)

    async def sleep_until(self, when: datetime) -> None:
        if when <= self._now:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((when, future))
        await future

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        for when, future in self._waiting:
            if when <= self._now and not future.done():
                future.set_result(None)
        self._waiting = [(when, future) for when, future in self._waiting if not future.done()]
