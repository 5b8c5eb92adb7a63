"""The trees that this node keeps for others than running sandboxes: captured ones, and what an archive gave back.

Says where a tree is, and since when it does not change; knows no object store.
"""

import asyncio
import errno
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from skerry.model.capture import Held
from skerry.model.errors import NotFound, Refused, SkerryError, TooBusy
from skerry.model.ids import SandboxId, TreeId, is_id
from skerry.node.captures import Captures
from skerry.node.parts import Still
from skerry.node.pool import Pool, full, require_room
from skerry.node.traces import Trace
from skerry.node.tree_copy import DEEPEST
from skerry.node.turns import Turns

_WATCH_S = 1.0


class KeptTrees:
    """The trees of a pool. Each verb may be called twice, and after a crash at any step of itself."""

    def __init__(self, pool: Pool, turns: Turns) -> None:
        self._pool = pool
        self._turns = turns
        self._captures = Captures(pool)

    async def open(self) -> None:
        """Remove what was never whole. To be called before anything is captured."""
        await self._turns.run(self._captures.clean)

    async def holds(self, tree: TreeId) -> bool:
        """Whether it is here: captured, or the workspace of a sandbox in whatever state."""
        return await self._turns.run(lambda: find(self._pool, tree) is not None)

    async def still(self, tree: TreeId) -> Still:
        """A tree that its callers know not to change.

        Raises:
            NotFound: It is not here.
        """
        return await self._turns.run(lambda: self._still(tree))

    async def capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        """See `seams.Provider.capture`."""
        await self._turns.alone(tree, lambda: self._capture(sandbox_id, tree))

    async def begin(self, tree: TreeId, size_bytes: int) -> Path:
        """An empty tree with room for `size_bytes`, to be filled; then `finish` or `undo`.

        Raises:
            TooBusy: No room now.
        """
        return await self._turns.alone(tree, lambda: self._begin(tree, size_bytes))

    async def finish(self, tree: TreeId) -> None:
        await self._turns.alone(tree, lambda: self._captures.finish(tree))

    async def undo(self, tree: TreeId) -> None:
        await self._turns.alone(tree, lambda: self._captures.undo(tree))

    async def run_low(self) -> TooBusy:
        """Return when the pool has run low, with what to say about it. To be cancelled."""
        while True:
            try:
                await self._turns.run(lambda: require_room(self._pool, 0))
            except TooBusy as error:
                return error
            await asyncio.sleep(_WATCH_S)

    async def drop(self, tree: TreeId) -> None:
        """Remove a captured tree. Not held: success."""
        await self._turns.alone(tree, lambda: self._drop(tree))

    async def held(self, stopped: Sequence[SandboxId]) -> list[Held]:
        """The captured trees, and those of sandboxes that are known to be stopped."""
        return await self._turns.run(lambda: self._held(stopped))

    async def lineages(self) -> set[str]:
        """The lineages of all trees that are here, sandboxes' workspaces in whatever state included."""
        return await self._turns.run(self._lineages)

    async def traces(self) -> list[Trace]:
        """What is half-made."""
        return await self._turns.run(self._captures.half_made)

    async def tidy(self) -> None:
        """Let go of what could not go before."""
        await self._turns.run(self._pool.trees.tidy)

    def _still(self, tree: TreeId) -> Still:
        found = find(self._pool, tree)
        if found is None:
            raise missing(tree)
        return found

    def _capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        if self._captures.find(tree) is not None:
            return
        require_room(self._pool, 0)
        source = self._still(TreeId(sandbox_id))
        try:
            self._captures.take(source.path, tree, sandbox_id)
        except OSError as error:
            raise uncopied(self._pool, TreeId(sandbox_id), error) from error

    def _begin(self, tree: TreeId, size_bytes: int) -> Path:
        require_room(self._pool, size_bytes)
        try:
            return self._captures.begin(tree, tree if is_id(tree, "sbx") else None)
        except OSError as error:
            raise uncopied(self._pool, tree, error) from error

    def _drop(self, tree: TreeId) -> None:
        self._captures.remove(tree)
        if is_id(tree, "sbx") and not (self._pool.sandboxes / tree).exists():
            self._pool.trees.remove([], tree)

    def _held(self, stopped: Sequence[SandboxId]) -> list[Held]:
        found = {held.id: held for held in self._captures.held()}
        for sandbox_id in stopped:
            still = find(self._pool, TreeId(sandbox_id))
            if still is not None:
                found[TreeId(sandbox_id)] = Held(TreeId(sandbox_id), still.since)
        return list(found.values())

    def _lineages(self) -> set[str]:
        return self._captures.lineages() | {path.name for path in self._pool.sandboxes.iterdir()}


def find(pool: Pool, tree: TreeId) -> Still | None:
    """Where a tree is: a sandbox's own workspace, else a captured one. None: not here."""
    home = pool.sandboxes / tree
    if is_id(tree, "sbx") and (home / "workspace").is_dir():
        # A stop is the last that changes the directory: what was written in the same moment is not trusted.
        return Still(home / "workspace", datetime.fromtimestamp(home.stat().st_mtime, UTC), tree)
    return Captures(pool).find(tree)


def missing(tree: TreeId) -> NotFound:
    return NotFound(f"The files of {tree} are not on this node.", code="tree_missing")


def uncopied(pool: Pool, tree: TreeId, error: OSError) -> SkerryError:
    """What is said when a tree could not be copied or made."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full(pool)
    if error.errno == errno.ENOENT:
        return missing(tree)
    if error.errno == errno.ELOOP:
        return Refused(
            f"The files of {tree} lie more than {DEEPEST} directories deep, which this pool of plain directories cannot"
            " copy. Move them up, or put the pool on btrfs.",
            code="tree_too_deep",
        )
    return Refused(f"The files of {tree} cannot be copied: {error}.")
