"""Resuming: new compute under the same id, around the files that the node has, else those in the object store."""

import asyncio

from skerry.control import making, placing, records, stopping
from skerry.control.deps import Deps
from skerry.model.capture import Capture
from skerry.model.errors import Conflict, SkerryError, Unavailable
from skerry.model.ids import AccountId, SandboxId, TreeId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Placement, Sandbox


async def resume(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """Bring a sandbox up again and return it running. Runs already: the same. Many at once: one does it, all wait.

    From `stopped`, from `stopping` (its archive is broken off), and from `failed`, unless it could not be made at all.

    Raises:
        NotFound: As `sandboxes.get`.
        Conflict: `sandbox_<state>`: it is destroyed, or could not be made. `files_lost`: nothing is left of its files.
        Refused, TooBusy, Unavailable, DeadlineExceeded: It was tried and failed; it is on its way back to `stopped`.
    """
    return await up(deps, await records.get(deps, account_id, sandbox_id))


async def up(deps: Deps, sandbox: Sandbox) -> Sandbox:
    """As `resume`, of a record. A caller that leaves meanwhile changes nothing."""
    task = deps.coming_up.get(sandbox.id)
    if task is None:
        if sandbox.state is State.RUNNING:
            return sandbox
        task = deps.tasks.spawn(_bring_up(deps, sandbox.id), name=f"resume {sandbox.id}")
        deps.coming_up[sandbox.id] = task
        task.add_done_callback(lambda _: deps.coming_up.pop(sandbox.id))
    return await asyncio.shield(task)


async def take_back(deps: Deps, sandbox: Sandbox, reason: str) -> Sandbox:
    """End a resume that came to nothing: the sandbox is `stopping`, and stored again. Moved meanwhile: as it is."""
    try:
        return await deps.store.transition(sandbox, Event.BROKE, detail=f"It could not be resumed: {reason}")
    except Conflict:
        return await deps.store.get_sandbox(sandbox.id)


async def _bring_up(deps: Deps, sandbox_id: SandboxId) -> Sandbox:
    while True:
        sandbox = await deps.store.get_sandbox(sandbox_id)
        if sandbox.state is State.RUNNING:
            return sandbox
        if sandbox.state in (State.CREATING, State.RESUMING):
            await _elsewhere(deps, sandbox)
            continue
        if not records.has_files(sandbox):
            raise records.not_possible(sandbox)
        try:
            resuming = await deps.store.transition(sandbox, Event.RESUME)
        except Conflict:
            continue  # it moved under us
        return await _resume(deps, sandbox, resuming)


async def _elsewhere(deps: Deps, sandbox: Sandbox) -> None:
    """Wait for another process, which is at it; what it fails with is told here, too, and not tried again at once."""
    now = await records.settled_elsewhere(deps, sandbox.id)
    if sandbox.state is State.RESUMING and now.state in (State.STOPPING, State.STOPPED):
        raise Unavailable(now.detail or f"Sandbox '{sandbox.id}' could not be resumed. Try again.")


async def _resume(deps: Deps, before: Sandbox, sandbox: Sandbox) -> Sandbox:
    try:
        await _make_ready(deps, before)
        placement, detail = await _place(deps, before, sandbox)
        sandbox = await making.created(deps, sandbox, placement, detail=detail)
    except SkerryError as error:
        await _fall_back(deps, sandbox, error)
        raise
    placing.came_up(deps, sandbox)
    return sandbox


async def _make_ready(deps: Deps, before: Sandbox) -> None:
    await stopping.break_off(deps, before)
    dropping = deps.work.dropping.get(TreeId(before.id))
    if dropping is not None:
        await asyncio.wait([dropping])
    if before.state is not State.STOPPED:
        # Whoever was to stop it may have died before the node heard of it.
        await stopping.free(deps, before)


async def _place(deps: Deps, before: Sandbox, sandbox: Sandbox) -> tuple[Placement, str]:
    """What was made, and what is to be said of its files."""
    tree = TreeId(sandbox.id)
    try:
        return await placing.place(deps, sandbox, Capture(tree, placing.stored(before))), ""
    except Conflict as error:
        if error.code != "files_lost" or sandbox.archive is None or placing.stored(before) is not None:
            raise
    return await placing.place(deps, sandbox, Capture(tree, sandbox.archive)), stopping.OLDER


async def _fall_back(deps: Deps, sandbox: Sandbox, error: SkerryError) -> None:
    back = await take_back(deps, sandbox, error.message)
    lost = isinstance(error, Conflict) and error.code == "files_lost"
    if not lost or (back.state, back.generation) != (State.STOPPING, sandbox.generation):
        return
    try:
        await deps.store.transition(back, Event.BROKE, cause=Cause.DISK, detail=error.message)
    except Conflict:
        return  # moved meanwhile: that has the last word
