"""Making sandboxes: the record first, then the compute. The reconciler finishes or undoes what a crash leaves."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from skerry.control import placing, records
from skerry.control.deciding import Decided
from skerry.control.deps import Deps
from skerry.model.errors import Conflict, NotFound, SkerryError
from skerry.model.ids import AccountId, SandboxId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.request import Once
from skerry.model.sandbox import Placement, Sandbox

Decide = Callable[[], Awaitable[Decided]]


async def make(deps: Deps, decide: Decide) -> Sandbox:
    """Make one and return it running. A caller that leaves meanwhile changes nothing.

    Raises:
        As `decide`, before anything is recorded, and `placing.place`, after: then the record says so, too.
        Conflict: It was destroyed while it was being made.
    """
    made = await _make_unless(deps, await decide(), None)
    assert made is not None
    return made


async def make_once(deps: Deps, account_id: AccountId, decide: Decide, once: Once) -> Sandbox:
    """As `make`, or what an equal request has made: one that came to nothing is made again.

    Raises:
        Conflict: The key is another request's.
    """
    while True:
        made = await deps.store.find_request(account_id, once)
        if made is not None:
            sandbox = await records.settled(deps, SandboxId(made))
            if not records.never_made(sandbox):
                return sandbox
        created = await _make_unless(deps, await decide(), replace(once, instead_of=made))
        if created is not None:
            return created


async def fail(deps: Deps, sandbox: Sandbox, reason: str) -> None:
    """Record a create that did not come to its end. What it left at the provider is destroyed by the reconciler."""
    try:
        await deps.store.transition(sandbox, Event.BROKE, cause=Cause.CREATE, detail=reason)
    except Conflict:
        return  # destroyed meanwhile: that has the last word


async def created(deps: Deps, sandbox: Sandbox, placement: Placement, *, detail: str = "") -> Sandbox:
    """Record that compute came up.

    Raises:
        Conflict: The record moved meanwhile; what came up is ended. Its files are kept where they are to be.
    """
    try:
        return await deps.store.transition(sandbox, Event.CREATED, placement=placement, detail=detail)
    except Conflict:
        now = await deps.store.get_sandbox(sandbox.id)
        if now.state in (State.DESTROYING, State.DESTROYED) or records.never_made(now):
            # The destroy may have run before there was anything to destroy.
            await deps.provider.destroy(sandbox.id)
        elif now.generation == sandbox.generation and now.state is not State.RUNNING:
            await end_compute(deps, sandbox)
        raise


async def end_compute(deps: Deps, sandbox: Sandbox) -> None:
    """End what runs of a sandbox in this generation, if anything does."""
    try:
        await deps.provider.stop(sandbox.id, sandbox.generation)
    except NotFound:
        return


async def _make_unless(deps: Deps, decided: Decided, once: Once | None) -> Sandbox | None:
    """None: another process has made one for this request meanwhile."""
    sandbox = decided.sandbox
    deps.creating.add(sandbox.id)
    try:
        standing = await deps.store.add_sandbox(sandbox, once)
    except BaseException:
        deps.creating.discard(sandbox.id)
        raise
    if standing != sandbox.id:
        deps.creating.discard(sandbox.id)
        return None
    task = deps.tasks.spawn(_make(deps, decided), name=f"create {sandbox.id}")
    deps.coming_up[sandbox.id] = task
    task.add_done_callback(lambda _: deps.coming_up.pop(sandbox.id))
    return await asyncio.shield(task)


async def _make(deps: Deps, decided: Decided) -> Sandbox:
    sandbox = decided.sandbox
    try:
        async with deps.telemetry.create():
            placement = await placing.place(deps, sandbox, decided.capture)
            sandbox = await created(deps, sandbox, placement)
    except SkerryError as error:
        if isinstance(error, Conflict) and error.code != "files_lost":
            raise
        await fail(deps, sandbox, error.message)
        error.message = f"{error.message} The attempt is recorded as '{sandbox.id}'."
        raise
    finally:
        deps.creating.discard(sandbox.id)
    placing.came_up(deps, sandbox)
    return sandbox
