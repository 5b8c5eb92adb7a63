"""The states of a sandbox and the one table of moves between them. Only `Store.transition` sets a state."""

from enum import StrEnum

from skerry.model.errors import Conflict


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    FAILED = "failed"


class Event(StrEnum):
    CREATED = "created"
    BROKE = "broke"
    DESTROY = "destroy"
    GONE = "gone"


class Cause(StrEnum):
    """Why a sandbox is `failed`."""

    CREATE = "create"
    OOM = "oom"
    TIMEOUT = "timeout"
    RUNTIME_DIED = "runtime_died"
    DISK = "disk"
    HOST_RESTART = "host_restart"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.CREATING, Event.CREATED): State.RUNNING,
    (State.CREATING, Event.BROKE): State.FAILED,
    (State.CREATING, Event.DESTROY): State.DESTROYING,
    (State.RUNNING, Event.BROKE): State.FAILED,
    (State.RUNNING, Event.DESTROY): State.DESTROYING,
    # The workspace of a failed sandbox is kept until its owner destroys it.
    (State.FAILED, Event.DESTROY): State.DESTROYING,
    (State.DESTROYING, Event.GONE): State.DESTROYED,
}

FINAL = frozenset({State.DESTROYED})


def advance(state: State, event: Event) -> State:
    """The state after `event`.

    Raises:
        Conflict: The table has no such move.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"A sandbox that is {state} cannot take '{event}'.", code=f"sandbox_{state}") from None
