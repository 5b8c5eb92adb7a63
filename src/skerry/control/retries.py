"""When to try again what has failed: after pauses that grow. Of this process alone; the next one tries at once."""

from datetime import datetime, timedelta

_FIRST_S = 5
_LONGEST_S = 300


class Retries:
    """By the id of the thing."""

    def __init__(self) -> None:
        self._put_off: dict[str, tuple[int, datetime]] = {}

    def put_off(self, thing: str, now: datetime) -> int:
        """It has failed just now: how many seconds it is left alone."""
        times = self._put_off.get(thing, (0, now))[0]
        pause_s = min(_LONGEST_S, _FIRST_S << min(times, 8))
        self._put_off[thing] = (times + 1, now + timedelta(seconds=pause_s))
        return pause_s

    def due(self, thing: str, now: datetime) -> bool:
        return thing not in self._put_off or now >= self._put_off[thing][1]

    def forget(self, thing: str) -> None:
        self._put_off.pop(thing, None)
