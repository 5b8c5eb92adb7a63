"""Environment variables whose values may be secrets. Readable by whoever asks for them, and shown by nothing."""

from collections.abc import Callable, Iterator, Mapping

REDACTED = "[redacted]"  # what lists show in place of a value


class Env(Mapping[str, str]):
    """A mapping that does not tell its values in a repr, and so in no log line and no message.

    `values` may be a function that gives them when they are first asked for: a record can then be handed around
    without its secrets ever being opened. What that function raises is raised by the look at the values.
    """

    __slots__ = ("_opened", "_values")

    def __init__(self, values: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> None:
        self._values = values
        self._opened: dict[str, str] | None = None if callable(values) else dict(values)

    def _open(self) -> dict[str, str]:
        if self._opened is None:
            assert callable(self._values)
            self._opened = dict(self._values())
        return self._opened

    def __getitem__(self, name: str) -> str:
        return self._open()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._open())

    def __len__(self) -> int:
        return len(self._open())

    def __repr__(self) -> str:
        return "Env(…)"
