"""The trees of a node as its provider's callers see them: captured, put into the object store, fetched, dropped.

Knows which sandbox may be read when; the files are `trees`' business, the object store is the archiver's.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import cast
from weakref import WeakValueDictionary

from skerry.model.capture import Archive, Held, Moved, Swept, Vault
from skerry.model.errors import Conflict, Invalid, NotFound, Refused
from skerry.model.ids import ArchiveId, SandboxId, TreeId, is_id
from skerry.model.sandbox import Observed
from skerry.node.parts import Archiver, Parts
from skerry.node.records import Stage
from skerry.node.shares import Shares
from skerry.node.supervisor import Supervisor
from skerry.node.tasks import through

# An archive takes a core: it waits rather than that sandboxes do. A fetch is waited for, and never waits for archives.
# Of each one vault has all but one at most: however much an account stores, another's files are on their way.
ARCHIVES_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)
FETCHES_AT_ONCE = 4
WAITING_S = 60.0  # how often one that waits for its turn says so: who hears nothing for long takes it for dead

Tell = Callable[[Moved], Awaitable[None]]


class TreeKeeper:
    """The trees of one node. `group` finishes what a caller that went away had begun."""

    def __init__(self, parts: Parts, supervisor: Supervisor, group: asyncio.TaskGroup) -> None:
        self._parts = parts
        self._supervisor = supervisor
        self._group = group
        self._archives = Shares(ARCHIVES_AT_ONCE, ARCHIVES_AT_ONCE - 1)
        self._fetches = Shares(FETCHES_AT_ONCE, FETCHES_AT_ONCE - 1)
        self._alone: WeakValueDictionary[TreeId, asyncio.Lock] = WeakValueDictionary()

    async def capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        """See `seams.Provider.capture`."""
        if not is_id(sandbox_id, "sbx") or not (is_id(tree, "snap") or is_id(tree, "cap")):
            raise Invalid(f"{tree!r} cannot be a capture of {sandbox_id!r}.", field="tree")
        async with self._supervisor.locked(sandbox_id) as held:
            if held.record is not None and held.record.stage in (Stage.CREATING, Stage.DESTROYING):
                raise _missing(TreeId(sandbox_id))
            await self._parts.trees.capture(sandbox_id, tree)

    async def archive(self, tree: TreeId, vault: Vault, tell: Tell) -> None:
        """See `seams.Provider.archive`; each item is told."""
        _check(tree, vault)
        archiver = self._archiver()
        if not is_id(tree, "sbx"):
            task = self._supervisor.works.start(tree, self._archive(archiver, tree, vault, tell))
        else:
            async with self._supervisor.locked(SandboxId(tree)) as held:
                if held.record is not None and held.record.stage not in (Stage.STOPPED, Stage.DEAD):
                    raise Conflict(f"Sandbox {tree} is {held.record.stage}: it is archived once it is stopped.")
                task = self._supervisor.works.start(tree, self._archive(archiver, tree, vault, tell))
        await self._supervisor.works.outcome(tree, task)

    async def _archive(self, archiver: Archiver, tree: TreeId, vault: Vault, tell: Tell) -> None:
        async with self._turn(tree, self._archives, vault, tell):
            still = await self._parts.trees.still(tree)
            items = archiver.archive(still.path, vault, captured_at=still.since, cache_name=still.lineage)
            await _tell_all(items, tell)

    async def fetch(self, tree: TreeId, archive: Archive, vault: Vault, tell: Tell) -> None:
        """See `seams.Provider.fetch`; each item is told."""
        _check(tree, vault)
        if not is_id(archive.id, "arc"):
            raise Invalid(f"Not an archive's id: {archive.id!r}.", field="archive")
        if await self._parts.trees.holds(tree):
            await tell(Moved(archive.size_bytes, archive.size_bytes))
            return
        archiver = self._archiver()
        task = self._supervisor.works.start(tree, self._fetch(archiver, tree, archive, vault, tell))
        await self._supervisor.works.outcome(tree, task)

    async def _fetch(self, archiver: Archiver, tree: TreeId, archive: Archive, vault: Vault, tell: Tell) -> None:
        async with self._turn(tree, self._fetches, vault, tell):
            if await self._parts.trees.holds(tree):
                return
            path = await self._parts.trees.begin(tree, archive.size_bytes)
            try:
                items = archiver.fetch(path, archive, vault, cache_name=tree)
                async with asyncio.TaskGroup() as both:
                    watching = both.create_task(self._refuse_when_low())
                    await _tell_all(items, tell)
                    watching.cancel()
                await through(self._group, self._parts.trees.finish(tree))
            except BaseException:
                await through(self._group, self._parts.trees.undo(tree))
                raise

    async def _refuse_when_low(self) -> None:
        raise await self._parts.trees.run_low()

    async def drop(self, tree: TreeId) -> None:
        """See `seams.Provider.drop`."""
        lineage = await self._lineage(tree)
        if is_id(tree, "sbx"):
            await self._supervisor.drop(SandboxId(tree))
        else:
            await through(self._group, self._drop(tree))
        await self._forget(tree, lineage)

    async def _drop(self, tree: TreeId) -> None:
        async with self._supervisor.works.closed(tree):
            await self._parts.trees.drop(tree)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """See `seams.Provider.destroy`."""
        await self._supervisor.destroy(sandbox_id)
        if is_id(sandbox_id, "sbx"):
            await self._forget(sandbox_id)

    async def tidy(self) -> None:
        """Forget what is remembered of trees that are not here any more: what a crash, or an archive that ended after
        its source, has left. To be called at the start, and now and then.
        """
        if self._parts.archiver is None or self._supervisor.works.busy:
            return
        remembered = await self._parts.archiver.remembered()
        for name in set(remembered) - set(await self._parts.trees.lineages()):
            await self._parts.archiver.forget(name)

    async def _lineage(self, tree: TreeId) -> str:
        try:
            return (await self._parts.trees.still(tree)).lineage
        except NotFound:
            return tree

    async def _forget(self, *names: str) -> None:
        """What is remembered of trees of these lineages, unless they are here. It is a hint: no copy depends on it."""
        if self._parts.archiver is None:
            return
        for name in dict.fromkeys(names):
            if not await self._parts.trees.holds(TreeId(name)):
                await self._parts.archiver.forget(name)

    async def trees(self) -> Sequence[Held]:
        """See `seams.Provider.trees`."""
        return await self._parts.trees.held([seen.id for seen in self._supervisor.list() if seen.stopped])

    async def fetched(self, known: Collection[SandboxId]) -> Sequence[Observed]:
        """Sandboxes, beside the `known` ones, of which nothing is here but what an archive gave back."""
        ids = [SandboxId(held.id) for held in await self._parts.trees.held([]) if is_id(held.id, "sbx")]
        return [Observed(one, 0, running=False, stopped=True) for one in ids if one not in known]

    async def sweep(self, vault: Vault, keep: Collection[ArchiveId], *, older_than_s: float, dry: bool) -> Swept:
        """See `seams.Provider.sweep`."""
        _check(None, vault)
        return await self._archiver().sweep(vault, keep, older_than_s=older_than_s, dry=dry)

    def _archiver(self) -> Archiver:
        if self._parts.archiver is None:
            raise Refused(
                "This node keeps archives nowhere (archive_url is 'none'), so nothing can be stored or fetched.",
                code="storage_disabled",
            )
        return self._parts.archiver

    @asynccontextmanager
    async def _turn(self, tree: TreeId, shares: Shares, vault: Vault, tell: Tell) -> AsyncGenerator[None]:
        """The tree for oneself, and a turn among the vaults."""
        alone = self._alone.setdefault(tree, asyncio.Lock())
        async with AsyncExitStack() as turn:
            async with asyncio.TaskGroup() as both:
                waiting = both.create_task(_say_that_it_waits(tell))
                await turn.enter_async_context(alone)
                await turn.enter_async_context(shares.of(vault.id))
                waiting.cancel()
            yield


async def _say_that_it_waits(tell: Tell) -> None:
    while True:
        await asyncio.sleep(WAITING_S)
        await tell(Moved(0))


def _check(tree: TreeId | None, vault: Vault) -> None:
    """Ids become names of files and keys: nothing else than an id may pass."""
    if not is_id(vault.id, "vlt") or len(vault.key) != 32:
        raise Invalid("Not a vault: its id or its key has another form.", field="vault")
    if tree is not None and not any(is_id(tree, prefix) for prefix in ("sbx", "snap", "cap")):
        raise Invalid(f"Not the id of a tree: {tree!r}.", field="tree")


def _missing(tree: TreeId) -> NotFound:
    return NotFound(f"The files of {tree} are not on this node.", code="tree_missing")


async def _tell_all(items: AsyncIterator[Moved], tell: Tell) -> None:
    async with aclosing(cast(AsyncGenerator[Moved], items)) as moving:
        async for moved in moving:
            await tell(moved)
