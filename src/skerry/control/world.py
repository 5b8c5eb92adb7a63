"""One look at the records and at the world, and what a rule of the reconciler is."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from skerry.control import idleness
from skerry.control.deps import Deps
from skerry.model.capability import Health
from skerry.model.capture import Held, Vault
from skerry.model.command import Command, Exit
from skerry.model.ids import AccountId, CommandId, SandboxId, SnapshotId
from skerry.model.lifecycle import State
from skerry.model.sandbox import Observed, Sandbox
from skerry.model.snapshot import Snapshot
from skerry.model.template import TemplateStatus

T = TypeVar("T")
_FINISHED = (State.DESTROYED,)


@dataclass(frozen=True, slots=True)
class World:
    """One look. The order of looking matters: see `look`."""

    expected: Sequence[Sandbox]  # ran before the provider was asked
    observed: Mapping[SandboxId, Observed]
    records: Mapping[SandboxId, Sandbox]  # all that are not destroyed, read after
    building: frozenset[str]
    running: Sequence[Command]
    exits: Mapping[CommandId, Exit | None]
    due: Sequence[Sandbox]  # came up and were not started up
    idle: Sequence[Sandbox]  # ran before, and are overdue
    trees: Sequence[Held]
    snapshots: Mapping[SnapshotId, Snapshot]  # read after the trees
    vaults: Mapping[AccountId, Vault]
    health: Health


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    name: str
    find: Callable[[Deps, World], Iterable[T]]
    fix: Callable[[Deps, World, T], Awaitable[None]]
    routine: bool = False  # housekeeping: nothing was wrong


async def look(deps: Deps) -> World:
    """Look at everything once.

    What runs is read before the provider is asked, what is wanted after: so whatever is made or destroyed in between is
    neither taken for dead nor for unwanted.
    """
    alive = [state for state in State if state not in _FINISHED]
    expected = await deps.store.list_sandboxes(states=[State.RUNNING])
    running = [c for c in await deps.store.list_commands(running=True) if c.id not in deps.following]
    observed = {each.id: each for each in await deps.provider.list()}
    trees = await deps.provider.trees()
    health = await deps.provider.health()
    exits = await deps.provider.command_exits([c.id for c in running]) if running else {}
    records = {sandbox.id: sandbox for sandbox in await deps.store.list_sandboxes(states=alive)}
    snapshots = {snapshot.id: snapshot for snapshot in await deps.store.list_snapshots()}
    building: frozenset[str] = frozenset()
    if any(s.state is State.CREATING and s.id not in deps.creating for s in records.values()):
        states = await deps.provider.templates()
        building = frozenset(state.name for state in states if state.status is TemplateStatus.BUILDING)
    due = await deps.store.due_startups()
    idle = await idleness.overdue(deps, expected)
    vaults = await deps.store.list_vaults()
    return World(expected, observed, records, building, running, exits, due, idle, trees, snapshots, vaults, health)
