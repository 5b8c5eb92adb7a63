"""The states of a sandbox and the one table of moves between them. Only `Store.transition` sets a state."""

from enum import StrEnum

from skerry.model.errors import Conflict


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESUMING = "resuming"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    FAILED = "failed"


class Event(StrEnum):
    CREATED = "created"
    BROKE = "broke"
    STOP = "stop"
    ARCHIVED = "archived"
    RESUME = "resume"
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
    (State.RUNNING, Event.STOP): State.STOPPING,
    (State.RUNNING, Event.DESTROY): State.DESTROYING,
    # Its compute is freed at once; it is stopped when its files are in the object store. Until then the node has them.
    (State.STOPPING, Event.ARCHIVED): State.STOPPED,
    (State.STOPPING, Event.RESUME): State.RESUMING,
    (State.STOPPING, Event.BROKE): State.FAILED,
    (State.STOPPING, Event.DESTROY): State.DESTROYING,
    (State.STOPPED, Event.RESUME): State.RESUMING,
    (State.STOPPED, Event.DESTROY): State.DESTROYING,
    (State.RESUMING, Event.CREATED): State.RUNNING,
    # What came up for a moment may have written: its files are archived again.
    (State.RESUMING, Event.BROKE): State.STOPPING,
    (State.RESUMING, Event.DESTROY): State.DESTROYING,
    # The workspace of a failed sandbox is kept until its owner destroys it, resumes it, or has it stored.
    (State.FAILED, Event.STOP): State.STOPPING,
    (State.FAILED, Event.RESUME): State.RESUMING,
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
