"""Looking sandboxes up: whose they are, whether they run, and waiting until it is settled what became of one."""

import asyncio
from datetime import timedelta

from skerry.control.deps import Deps
from skerry.model.errors import Conflict, NotFound, Unavailable
from skerry.model.ids import AccountId, SandboxId, is_id
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Sandbox

# Longer than a create may take, for what another process is at work on.
_PATIENCE_S = 160.0
_LOOK_AGAIN_S = 0.05
_COMING_UP = (State.CREATING, State.RESUMING)


async def get(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """Raises NotFound when there is none, or it is another account's: never told apart."""
    if is_id(sandbox_id, "sbx"):
        sandbox = await deps.store.get_sandbox(SandboxId(sandbox_id))
        if sandbox.account_id == account_id:
            return sandbox
    raise NotFound(f"No sandbox '{sandbox_id[:64]}'.")


async def get_running(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """A sandbox that can be looked into. What works in it asks `sandboxes.awake`.

    Raises:
        NotFound: As for `get`.
        Conflict: It is in another state; code `sandbox_<state>`.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    if sandbox.state is not State.RUNNING:
        raise not_possible(sandbox)
    return sandbox


def not_possible(sandbox: Sandbox) -> Conflict:
    """That a sandbox is in a state in which it cannot be done, and why it is."""
    why = ": ".join(part for part in (sandbox.cause, sandbox.detail) if part)
    told = f" ({why})" if why else ""
    return Conflict(f"Sandbox '{sandbox.id}' is {sandbox.state}{told}.", code=f"sandbox_{sandbox.state}")


def never_made(sandbox: Sandbox) -> bool:
    """Whether it failed before it had any files: nothing can come of it any more."""
    return sandbox.state is State.FAILED and sandbox.cause is Cause.CREATE


def has_files(sandbox: Sandbox) -> bool:
    """Whether there are files of it to copy, wherever they are."""
    gone = sandbox.state in (State.DESTROYING, State.DESTROYED)
    return not gone and not never_made(sandbox) and sandbox.state not in _COMING_UP


async def source(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """A sandbox whose files can be copied; one that is coming up is waited for.

    Raises:
        NotFound: As for `get`.
        Conflict: It is destroyed, or could not be made; code `sandbox_<state>`.
    """
    sandbox = await settled(deps, (await get(deps, account_id, sandbox_id)).id)
    if not has_files(sandbox):
        raise not_possible(sandbox)
    return sandbox


async def settled(deps: Deps, sandbox_id: SandboxId) -> Sandbox:
    """A sandbox once its making or resuming has ended.

    Raises:
        Unavailable: It takes long.
    """
    while (own := deps.coming_up.get(sandbox_id)) is not None:
        await asyncio.wait([own])
    return await settled_elsewhere(deps, sandbox_id)


async def settled_elsewhere(deps: Deps, sandbox_id: SandboxId) -> Sandbox:
    """As `settled`, where another process is at it, or has died over it: then until the reconciler has seen to it."""
    patience = deps.clock.now() + timedelta(seconds=_PATIENCE_S)
    while True:
        sandbox = await deps.store.get_sandbox(sandbox_id)
        if sandbox.state not in _COMING_UP:
            return sandbox
        now = deps.clock.now()
        if now > patience:
            raise Unavailable(f"Sandbox '{sandbox.id}' is still {sandbox.state}. Ask again later.")
        await deps.clock.sleep_until(now + timedelta(seconds=_LOOK_AGAIN_S))
