"""Files on their way to the object store and back: one tree at a time, with its progress for whoever looks."""

import asyncio
from collections.abc import AsyncIterator

from skerry.control.deps import Deps
from skerry.control.progress import Phase, Progress
from skerry.control.streams import closing
from skerry.model.capture import Archive, Moved
from skerry.model.errors import Conflict, DeadlineExceeded, NotFound, ProtocolError
from skerry.model.ids import AccountId, SandboxId, SnapshotId, TreeId

# A tree may take hours; a provider that says nothing for as long hangs.
_SILENCE_S = 900.0


async def store(deps: Deps, account_id: AccountId, tree: TreeId, shown: SandboxId | SnapshotId) -> Archive:
    """Put a tree into the account's vault. `shown`: whose progress it is. A few at once; the others wait.

    Raises:
        As `Provider.archive`.
    """
    vault = await deps.store.vault(account_id)
    busy = deps.work.archiving
    async with deps.work.gate(account_id):
        busy[account_id] = busy.get(account_id, 0) + 1
        try:
            made = await _follow(deps, deps.provider.archive(tree, vault), Phase.ARCHIVE, shown)
        finally:
            busy[account_id] -= 1
    if made is None:
        raise ProtocolError(f"Archiving '{tree}' ended without an archive.")
    return made


async def fetch(
    deps: Deps, account_id: AccountId, tree: TreeId, archive: Archive, shown: SandboxId | SnapshotId
) -> None:
    """Have the provider hold an archive's files as `tree`.

    Raises:
        As `Provider.fetch`, but for
        Conflict: `files_lost`: the object store has no such archive.
    """
    vault = await deps.store.vault(account_id)
    try:
        await _follow(deps, deps.provider.fetch(tree, archive, vault), Phase.FETCH, shown)
    except NotFound as error:
        # What the client asked for is there; only its files are not.
        raise Conflict(
            f"The files of '{shown}' are not to be had: their node does not hold them, and the object store, which was"
            f" given them as '{archive.id}', has them no more. Look at the store, and try again.",
            code="files_lost",
        ) from error


async def _follow(
    deps: Deps, steps: AsyncIterator[Moved], phase: Phase, shown: SandboxId | SnapshotId
) -> Archive | None:
    made: Archive | None = None
    deps.progress[shown] = Progress(phase)
    try:
        async with closing(steps):
            while (moved := await _next(steps)) is not None:
                deps.progress[shown] = Progress(phase, moved.done_bytes, moved.total_bytes)
                made = moved.archive or made
    finally:
        deps.progress.pop(shown, None)
    return made


async def _next(steps: AsyncIterator[Moved]) -> Moved | None:
    try:
        async with asyncio.timeout(_SILENCE_S):
            return await anext(steps, None)
    except TimeoutError as error:
        raise DeadlineExceeded(f"Nothing was heard of moving files for {_SILENCE_S:.0f} s.") from error
