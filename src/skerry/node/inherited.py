"""How much the tree of a sandbox or a capture has from others: what a copy began with is charged to nobody.

So it is bounded where a copy is made: what a sandbox begins with may be as large as its disk limit, what it writes to
that as large again, however long the chain of copies. Counted by adding up what each one in the chain was charged for:
too much, where some of it was deleted since. Only who would be refused for that is measured by a walk.
Kept with the tree's directory, out of the sandbox's reach.
"""

import os
from pathlib import Path

from skerry.model.errors import Refused
from skerry.node.trees import Trees, disk_usage

_NAME = "trusted.skerry.inherited"
_MIB = 1 << 20


def note(trees: Trees, source: Path, home: Path) -> None:
    """Remember how much the tree in `home` has from `source`, the tree that it has just been made a copy of.

    Where nothing is counted, nothing happens. OSError: the pool is full.
    """
    held = trees.held_bytes(source, _read(source.parent))
    if held is not None:
        _write(home, held)


def check(home: Path, tree: Path, limit_bytes: int) -> None:
    """Raises Refused (`disk_too_small`) where the tree in `home` begins with more than the limit."""
    if _read(home) <= limit_bytes:
        return
    held = disk_usage(tree)
    _write(home, held)
    if held > limit_bytes:
        raise Refused(
            f"The files that it is to begin with take {-(-held // _MIB)} MB, and its 'disk_mb' is"
            f" {limit_bytes // _MIB}. Remove some of them first, or begin from a snapshot and ask for more 'disk_mb'.",
            code="disk_too_small",
            field="disk_mb",
        )


def _read(home: Path) -> int:
    try:
        return int(os.getxattr(home, _NAME))
    except OSError:
        return 0


def _write(home: Path, held: int) -> None:
    os.setxattr(home, _NAME, str(held).encode())
