"""Captured trees: workspaces that are kept beside the sandboxes, by id, and never change. Blocking: call from a thread.

On disk `captures/<tree id>/{workspace,about.json}`. Each is made under another name first: what has its own is whole.
Whose they are, and for how long they are wanted, is their callers' business.
"""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from skerry.model.capture import Held
from skerry.model.errors import Invalid
from skerry.model.ids import TreeId, is_id
from skerry.model.leak import LeakKind
from skerry.node import inherited
from skerry.node.parts import Still
from skerry.node.pool import Pool
from skerry.node.traces import Trace, entries
from skerry.node.trees import FLUSHING

_HALF_MADE = ".new"
_TREE = "workspace"
ABOUT = "about.json"
_PREFIXES = ("sbx", "snap", "cap")


class Captures:
    """The captured trees of a pool."""

    def __init__(self, pool: Pool) -> None:
        self._trees = pool.trees
        self._directory = pool.captures

    def home(self, tree: TreeId) -> Path:
        """The directory of a tree, there or not. `Invalid` unless it has the form of a tree's id."""
        if not any(is_id(tree, prefix) for prefix in _PREFIXES):
            raise Invalid(f"Not the id of a tree: {tree!r}.", field="tree")
        return self._directory / tree

    def find(self, tree: TreeId) -> Still | None:
        home = self.home(tree)
        try:
            about = json.loads((home / ABOUT).read_text())
        except FileNotFoundError:
            return None
        return Still(home / _TREE, datetime.fromtimestamp(about["since"], UTC), about["lineage"])

    def take(self, source: Path, tree: TreeId, lineage: str) -> None:
        """Copy `source`, as it is now. There is such a tree: nothing happens. OSError: as `Trees.copy`."""
        if self.find(tree) is not None:
            return
        now = datetime.now(UTC)  # before the copy: what changes in the same moment is not in it
        unfinished = self._begin(tree)
        try:
            self._trees.copy(source, unfinished / _TREE, sealed=True)
            inherited.note(self._trees, source, unfinished)
            self._finish(tree, now, lineage)
        except OSError:
            self.undo(tree)
            raise

    def begin(self, tree: TreeId, owner: str | None) -> Path:
        """An empty tree that is to be filled, charged to `owner`; `finish` or `undo` it."""
        unfinished = self._begin(tree)
        try:
            self._trees.make([unfinished / _TREE], owner, None)
        except OSError:
            self.undo(tree)
            raise
        return unfinished / _TREE

    def finish(self, tree: TreeId) -> None:
        """What `begin` has begun is whole: on disk, unchanged from now on, held."""
        path = self._unfinished(tree) / _TREE
        self._trees.seal(path, True)
        self._trees.flush(path)
        self._finish(tree, datetime.now(UTC), tree)

    def undo(self, tree: TreeId) -> None:
        self._remove(self._unfinished(tree))

    def remove(self, tree: TreeId) -> None:
        """Not held: nothing happens. A charge stays as it is."""
        self._remove(self._unfinished(tree))
        self._remove(self.home(tree))

    def hand_over(self, tree: TreeId, home: Path) -> None:
        """Make the tree the workspace in `home`, which must not exist; it is held no more."""
        self.home(tree).rename(home)
        (home / ABOUT).unlink(missing_ok=True)

    def held(self) -> list[Held]:
        found: list[Held] = []
        for entry in self._directory.iterdir():
            tree = TreeId(entry.name)
            with suppress(Invalid):
                if (still := self.find(tree)) is not None:
                    found.append(Held(tree, still.since))
        return found

    def lineages(self) -> set[str]:
        """Of all that is held."""
        found = (self.find(held.id) for held in self.held())
        return {still.lineage for still in found if still is not None}

    def half_made(self) -> list[Trace]:
        there = entries(LeakKind.HALF_TREE, self._directory, _HALF_MADE)
        return [one for one in there if one.name.endswith(_HALF_MADE) or not Path(one.name, ABOUT).exists()]

    def clean(self) -> None:
        """Remove what was never whole: to be called when nothing is being made."""
        for entry in list(self._directory.iterdir()):
            if entry.name.endswith(_HALF_MADE) or not (entry / ABOUT).exists():
                self._remove(entry)

    def _unfinished(self, tree: TreeId) -> Path:
        home = self.home(tree)
        return home.with_name(home.name + _HALF_MADE)

    def _begin(self, tree: TreeId) -> Path:
        unfinished = self._unfinished(tree)
        self.remove(tree)  # what is half-made, or half-removed
        unfinished.mkdir(mode=0o700)
        return unfinished

    def _finish(self, tree: TreeId, since: datetime, lineage: str) -> None:
        unfinished = self._unfinished(tree)
        about = {"since": since.timestamp(), "lineage": lineage}
        fd = os.open(unfinished / ABOUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(about).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        unfinished.rename(self.home(tree))

    def _remove(self, directory: Path) -> None:
        if not directory.exists():
            return
        (directory / ABOUT).unlink(missing_ok=True)  # first: without it the tree is held no more
        path = directory / _TREE
        self._trees.remove([path, path.with_name(_TREE + FLUSHING)], None)
        directory.rmdir()
