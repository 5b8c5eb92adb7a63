"""Sandboxes as they were read last: of a row that has not changed, neither the record is made nor a secret opened anew.

Each look still reads the row, so that nothing here can be out of date. What was opened stays in memory, of those
sandboxes that were looked at last.
"""

from collections.abc import Callable

from skerry.model.sandbox import Sandbox
from skerry.store.rows import Columns

_MOST = 512
_ID = 1  # its column


class Seen:
    """`read` makes a record of a row. Used on one thread."""

    def __init__(self, read: Callable[[Columns], Sandbox]) -> None:
        self._read = read
        self._known: dict[str, tuple[Columns, Sandbox]] = {}

    def sandbox_of(self, row: Columns) -> Sandbox:
        """The record of a row of `sandboxes`."""
        known = self._known.get(row[_ID])
        if known is not None and known[0] == row:
            return known[1]
        sandbox = self._read(row)
        self._known.pop(row[_ID], None)
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[row[_ID]] = row, sandbox
        return sandbox
