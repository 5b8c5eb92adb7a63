"""The real clock. Tests use `skerry.testing.clock.ManualClock`."""

import asyncio
from datetime import UTC, datetime

# A wall clock that is set back or forward must not stretch a wait without bound: look again this often.
_LONGEST_NAP_S = 60.0


class SystemClock:
    """The host's wall clock and the event loop's sleep."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep_until(self, when: datetime) -> None:
        while (left := (when - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 (a moved wall clock sets no event)
            await asyncio.sleep(min(left, _LONGEST_NAP_S))
