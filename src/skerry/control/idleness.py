"""Idleness: what counts as use, how long ago it was, and when a sandbox that nobody uses is reclaimed."""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from skerry.control import sandboxes, stopping
from skerry.control.deps import Deps
from skerry.model.errors import Conflict
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Event, State
from skerry.model.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Idleness:
    """When a sandbox is reclaimed if nobody uses it from now on; None: it is not.

    `kept_awake_by` says what keeps it: `command` (one of the API's runs), `use` (a stream, an upload, a watch or a
    terminal with a client is open); empty with `reclaim_at` None: it does not run, or its idle timeout is 0.
    """

    reclaim_at: datetime | None = None
    kept_awake_by: tuple[str, ...] = ()


async def idleness(deps: Deps, sandbox: Sandbox) -> Idleness:
    """What the records and this process know. A look is no use."""
    return idleness_of(deps, sandbox, busy=sandbox.id in await deps.store.busy_sandboxes([sandbox.id]))


def idleness_of(deps: Deps, sandbox: Sandbox, *, busy: bool) -> Idleness:
    """As `idleness`, where it is known whether a command runs."""
    at = _reclaim_at(deps, sandbox)
    if at is None:
        return Idleness()
    reasons = {"command": busy, "use": deps.uses.in_use(sandbox.id)}
    kept = tuple(reason for reason, holds in reasons.items() if holds)
    return Idleness(None if kept else at, kept)


@asynccontextmanager
async def using(deps: Deps, sandbox_id: SandboxId) -> AsyncGenerator[None]:
    """Inside, the sandbox is in use and is not reclaimed; its begin and its end are noted as activity.

    For what lasts: streams, uploads, watches, terminals with a client. A short call is noted by `sandboxes.awake`.
    """
    deps.uses.begin(sandbox_id, deps.clock.now())
    try:
        yield
    finally:
        deps.uses.end(sandbox_id, deps.clock.now())


async def overdue(deps: Deps, running: Collection[Sandbox]) -> Sequence[Sandbox]:
    """Those that are to be reclaimed now."""
    late = [sandbox for sandbox in running if _is_due(deps, sandbox)]
    busy = await deps.store.busy_sandboxes([sandbox.id for sandbox in late]) if late else set[SandboxId]()
    return [sandbox for sandbox in late if sandbox.id not in busy]


async def reclaim(deps: Deps, sandbox_id: SandboxId) -> None:
    """Stop an idle sandbox, or destroy it where nothing is stored. Used meanwhile: nothing happens."""
    sandbox = await deps.store.get_sandbox(sandbox_id)
    if not _is_due(deps, sandbox):
        return
    stored = bool(deps.config.archive_place)
    try:
        sandbox = await deps.store.transition(sandbox, Event.STOP if stored else Event.DESTROY, unless_busy=True)
    except Conflict:
        return
    if stored:
        stopping.carry_on(deps, sandbox)
    else:
        await sandboxes.finish_destroy(deps, sandbox)


def _is_due(deps: Deps, sandbox: Sandbox) -> bool:
    at = _reclaim_at(deps, sandbox)
    return at is not None and at <= deps.clock.now() and not deps.uses.in_use(sandbox.id)


def _reclaim_at(deps: Deps, sandbox: Sandbox) -> datetime | None:
    if sandbox.state is not State.RUNNING or sandbox.idle_timeout_s == 0:
        return None
    used = [sandbox.created_at, sandbox.active_at, deps.uses.last(sandbox.id)]
    return max(at for at in used if at is not None) + timedelta(seconds=sandbox.idle_timeout_s)
