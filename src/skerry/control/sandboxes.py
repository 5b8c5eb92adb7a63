"""Sandboxes: create, look up, list, destroy. Writes the intent first; `reconcile` finishes what a crash left."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from skerry.control import deciding, endings, making, records, repeats, resuming
from skerry.control.deciding import NewSandbox, check_env
from skerry.control.deps import Deps
from skerry.control.placing import BASE_ENV, CREATE_DEADLINE_S, spec_of
from skerry.control.records import get, get_running
from skerry.model.errors import Conflict, DeadlineExceeded, Invalid, NotFound
from skerry.model.ids import AccountId, SandboxId
from skerry.model.lifecycle import Event, State
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Sandbox

__all__ = ["BASE_ENV", "CREATE_DEADLINE_S", "NewSandbox", "check_env", "get", "get_running", "spec_of"]

DESTROY_DEADLINE_S = 160.0
_ENDED = frozenset({State.FAILED, State.DESTROYING, State.DESTROYED})
_DOWN = frozenset({"sandbox_stopping", "sandbox_stopped", "sandbox_resuming"})

T = TypeVar("T")


async def create(deps: Deps, account_id: AccountId, wanted: NewSandbox, once: Once | None = None) -> Sandbox:
    """Make a sandbox and return it running. Each call makes another one, unless `once` says which calls are the same.

    A caller that leaves meanwhile changes nothing: the sandbox is finished, or fails, and is in the account's list.

    Raises:
        Invalid: A wish that no host here can meet (unknown template, too much memory, …); nothing was made.
        Refused, TooBusy, Unavailable, DeadlineExceeded: It was tried and failed; the record says so.
        Conflict: It was destroyed while it was being made; or the key of `once` is another request's.
    """
    decide = partial(deciding.decide, deps, account_id, wanted)
    if once is None:
        return await making.make(deps, decide)
    attempt = partial(making.make_once, deps, account_id, decide, once)
    return await repeats.shared(deps, account_id, once, attempt)


async def awake(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """A sandbox that work is given to now: it runs, resumed first if it was stopped, and was used just now.

    Raises:
        NotFound: As for `get`.
        Conflict: It cannot run; code `sandbox_<state>`.
        Refused, TooBusy, Unavailable, DeadlineExceeded: As `resuming.resume`.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    if sandbox.state in (State.STOPPED, State.STOPPING, State.RESUMING):
        sandbox = await resuming.up(deps, sandbox)
    elif sandbox.state is not State.RUNNING:
        raise records.not_possible(sandbox)
    deps.uses.note(sandbox.id, deps.clock.now())
    return sandbox


async def give(deps: Deps, account_id: AccountId, sandbox_id: str, work: Callable[[Sandbox], Awaitable[T]]) -> T:
    """Give work to a sandbox that is `awake`. Work that loses against a stop is given once more.

    Raises:
        As `awake` and `work`.
    """
    try:
        return await work(await awake(deps, account_id, sandbox_id))
    except Conflict as error:
        if error.code not in _DOWN:
            raise
    return await work(await awake(deps, account_id, sandbox_id))


async def list_page(
    deps: Deps,
    account_id: AccountId,
    *,
    states: Sequence[State] | None,
    where: Filter,
    limit: int,
    before: str | None,
) -> tuple[Sequence[Sandbox], SandboxId | None]:
    """One page, newest first, and the `before` of the next one.

    Raises:
        Invalid: `before` is no sandbox of this account.
    """
    if before is not None:
        try:
            await get(deps, account_id, before)
        except NotFound as error:
            raise Invalid(f"'{before[:64]}' is no sandbox of yours to page from.", field="before") from error
    found = await deps.store.list_sandboxes(
        account_id=account_id,
        states=states,
        where=where,
        limit=limit + 1,
        before=None if before is None else SandboxId(before),
    )
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


async def relabel(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, name: str | None, metadata: Mapping[str, object] | None
) -> Sandbox:
    """Replace name and metadata, in any state; None leaves one as it is, an empty one takes it away. Safe to repeat.

    Raises:
        NotFound: As for `get`.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    return await deps.store.change_sandbox(sandbox.id, Change(name=name, metadata=metadata))


async def set_env(deps: Deps, account_id: AccountId, sandbox_id: str, env: Mapping[str, str]) -> Sandbox:
    """Replace the environment that commands start with from now on. What runs keeps its own. Safe to repeat.

    Nothing is told to the sandbox: its environment comes with each command, from the record.

    Raises:
        NotFound: As for `get`.
        Conflict: It has ended; code `sandbox_<state>`.
        Invalid: A value is what lists show in place of one.
    """
    check_env(env)
    sandbox = await get(deps, account_id, sandbox_id)
    states = [state for state in State if state not in _ENDED]
    return await deps.store.change_sandbox(sandbox.id, Change(env=env), states=states)


async def destroy(deps: Deps, account_id: AccountId, sandbox_id: str) -> None:
    """End a sandbox and everything in it, in any state. Safe to call twice, and at once.

    Raises:
        NotFound: As for `get`.
        Unavailable, DeadlineExceeded: It is on record, and is finished as soon as the node answers.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    for stopping in [task for (of, _), task in deps.work.stopping.items() if of == sandbox.id]:
        stopping.cancel()
    while sandbox.state not in (State.DESTROYING, State.DESTROYED):
        try:
            sandbox = await deps.store.transition(sandbox, Event.DESTROY)
        except Conflict:
            # It moved under us. Each move brings it nearer to its end, so this loop has one too.
            sandbox = await deps.store.get_sandbox(sandbox.id)
    if sandbox.state is State.DESTROYING:
        await asyncio.shield(deps.tasks.spawn(finish_destroy(deps, sandbox), name=f"destroy {sandbox.id}"))


async def finish_destroy(deps: Deps, sandbox: Sandbox) -> None:
    """What `destroy` does once the intent is on record; the reconciler calls it for what a crash left."""
    try:
        async with asyncio.timeout(DESTROY_DEADLINE_S):
            await deps.provider.destroy(sandbox.id)
    except TimeoutError as error:
        raise DeadlineExceeded(f"Destroying '{sandbox.id}' takes long. It goes on; look again later.") from error
    await endings.settle_commands(deps, sandbox.id, None)
    await deps.store.delete_shells(sandbox.id)
    try:
        await deps.store.transition(sandbox, Event.GONE)
    except Conflict:
        if (await deps.store.get_sandbox(sandbox.id)).state is not State.DESTROYED:
            raise
