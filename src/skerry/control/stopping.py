"""Stopping: the compute ends at once, the files go to the object store, and only then is the sandbox `stopped`."""

import asyncio
from datetime import timedelta

from skerry.control import archives, endings, records
from skerry.control.deps import Deps
from skerry.model.capture import Archive
from skerry.model.errors import Conflict, DeadlineExceeded, NotFound, SkerryError
from skerry.model.ids import AccountId, TreeId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Change, Sandbox

WAIT_S = 30.0
_DEADLINE_S = 60.0
_KEPT = "This server stores no files: they are on its node alone. Resume it, or destroy it."
_LOST = "Its node does not hold its files any more, and they were not stored before."
OLDER = "Its node did not hold its files any more: they are as they were stored before."


async def stop(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, force: bool = False, wait_s: float | None = None
) -> Sandbox:
    """Free a sandbox's compute and store its files. Safe to call twice, and at once.

    Returns when it is stopped, when storing its files has failed for now (it stays `stopping`, its `detail` says why,
    and it is tried again), or after `wait_s` (None: WAIT_S) while the files are on their way. How far they are is in
    `deps.progress`. One that was resumed by somebody meanwhile is returned as it is then.

    Raises:
        NotFound: As `sandboxes.get`.
        Conflict: `sandbox_busy`: a command runs and `force` was not given. `storage_disabled`: this server keeps no
            files of stopped sandboxes. `sandbox_<state>`: it is destroyed, or could not be made.
        Unavailable, DeadlineExceeded: It is on record, and is finished as soon as the node answers.
    """
    sandbox = await records.get(deps, account_id, sandbox_id)
    while sandbox.state not in (State.STOPPING, State.STOPPED):
        sandbox = await records.source(deps, account_id, sandbox_id)
        if sandbox.state in (State.RUNNING, State.FAILED):
            sandbox = await _begin(deps, sandbox, force=force)
    if sandbox.state is State.STOPPED:
        return sandbox
    await _wait(deps, carry_on(deps, sandbox), WAIT_S if wait_s is None else wait_s)
    return await records.get(deps, account_id, sandbox_id)


def carry_on(deps: Deps, sandbox: Sandbox) -> asyncio.Task[Sandbox]:
    """Finish the stop of a sandbox that is `stopping`, or what of it can be done now. Under way already: the same."""
    key = (sandbox.id, sandbox.generation)
    task = deps.work.stopping.get(key)
    if task is None:
        task = deps.work.stopping[key] = deps.tasks.spawn(_finish(deps, sandbox), name=f"stop {sandbox.id}")
        task.add_done_callback(lambda _: deps.work.stopping.pop(key))
    return task


async def break_off(deps: Deps, sandbox: Sandbox) -> None:
    """Stop storing the files of this generation; what is under way with its compute is done first, or again."""
    task = deps.work.stopping.get((sandbox.id, sandbox.generation))
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def free(deps: Deps, sandbox: Sandbox) -> None:
    """End the compute of this generation and with it its commands. Nothing there: success.

    Raises:
        Unavailable, DeadlineExceeded
    """
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await deps.provider.stop(sandbox.id, sandbox.generation)
    except TimeoutError as error:
        raise DeadlineExceeded(f"Stopping '{sandbox.id}' takes long. It goes on; look again later.") from error
    except NotFound:
        pass  # whoever asks for its files is told
    await endings.settle_commands(deps, sandbox.id, sandbox.cause)


async def _begin(deps: Deps, sandbox: Sandbox, *, force: bool) -> Sandbox:
    if not deps.config.archive_place:
        raise Conflict(
            "This server stores no files of stopped sandboxes ('archive_url' is 'none'). Destroy the sandbox, or keep "
            "it running.",
            code="storage_disabled",
        )
    try:
        return await deps.store.transition(sandbox, Event.STOP, unless_busy=not force)
    except Conflict as error:
        if error.code == "sandbox_busy":
            raise
        return await deps.store.get_sandbox(sandbox.id)


async def _wait(deps: Deps, task: asyncio.Task[Sandbox], wait_s: float) -> None:
    enough = deps.clock.now() + timedelta(seconds=wait_s)
    timer = deps.tasks.spawn(deps.clock.sleep_until(enough), name="patience")
    try:
        await asyncio.wait([task, timer], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def _finish(deps: Deps, sandbox: Sandbox) -> Sandbox:
    await free(deps, sandbox)
    if not deps.config.archive_place:
        return await _broke(deps, sandbox, Cause.RUNTIME_DIED, sandbox.detail or _KEPT)
    try:
        archive = await archives.store(deps, sandbox.account_id, TreeId(sandbox.id), sandbox.id)
    except Conflict:
        return await deps.store.get_sandbox(sandbox.id)  # it runs: somebody has resumed it
    except NotFound:
        return await _without_files(deps, sandbox)
    except SkerryError as error:
        return await _put_off(deps, sandbox, error)
    return await _archived(deps, sandbox, archive, "")


async def _archived(deps: Deps, sandbox: Sandbox, archive: Archive, detail: str) -> Sandbox:
    deps.retries.forget(sandbox.id)
    try:
        return await deps.store.transition(sandbox, Event.ARCHIVED, archive=archive, detail=detail)
    except Conflict:
        return await deps.store.get_sandbox(sandbox.id)  # resumed or destroyed meanwhile


async def _without_files(deps: Deps, sandbox: Sandbox) -> Sandbox:
    """What the node holds nothing of is what was stored before; or else it is lost."""
    now = await deps.store.get_sandbox(sandbox.id)
    if now.archive is not None:
        return await _archived(deps, sandbox, now.archive, OLDER)
    return await _broke(deps, sandbox, Cause.DISK, _LOST)


async def _broke(deps: Deps, sandbox: Sandbox, cause: Cause, detail: str) -> Sandbox:
    try:
        return await deps.store.transition(sandbox, Event.BROKE, cause=cause, detail=detail)
    except Conflict:
        return await deps.store.get_sandbox(sandbox.id)


async def _put_off(deps: Deps, sandbox: Sandbox, error: SkerryError) -> Sandbox:
    pause_s = deps.retries.put_off(sandbox.id, deps.clock.now())
    detail = f"{error.message} Its files are on its node; storing them is tried again in {pause_s} s."
    try:
        return await deps.store.change_sandbox(sandbox.id, Change(detail=detail), states=[State.STOPPING])
    except (Conflict, NotFound):
        return await deps.store.get_sandbox(sandbox.id)
