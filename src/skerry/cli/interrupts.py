"""Signals that end this program, held back where an end would leave something behind that nobody knows of."""

import signal
from collections.abc import Generator
from contextlib import contextmanager

from skerry.cli.output import hint

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Held:
    """`released` is where an interrupt may come at once; around it one is remembered, and a second comes through."""

    def __init__(self) -> None:
        self._holding = True
        self._came = 0

    def take(self, number: int, frame: object) -> None:
        """The handler of these signals."""
        self._came += 1
        if not self._holding or self._came > 1:
            raise KeyboardInterrupt
        hint("skerry: interrupted; what was begun is put away first (once more: stop at once)")

    def check(self) -> None:
        """Raises KeyboardInterrupt when one came meanwhile."""
        if self._came:
            self._came = 0
            raise KeyboardInterrupt

    @contextmanager
    def released(self) -> Generator[None]:
        """Let interrupts come, one that came before first."""
        self.check()
        self._holding = False
        try:
            yield
        finally:
            self._holding, self._came = True, 0


@contextmanager
def held() -> Generator[Held]:
    """Hold interrupts back; one that came is raised at the end."""
    one = Held()
    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, one.take) for number in heard}
    try:
        yield one
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    one.check()


@contextmanager
def telling(text: str) -> Generator[None]:
    """Tell whoever interrupts what becomes of that which was begun."""
    try:
        yield
    except KeyboardInterrupt:
        hint(f"skerry: {text}")
        raise
