"""What a `MemoryStore` does where a database has a statement: which records a filter means, what a move says. Pure."""

from dataclasses import replace

from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Filter, Sandbox, labels_of


def explained(moved: Sandbox, event: Event, cause: Cause | None, detail: str) -> Sandbox:
    if event in (Event.STOP, Event.RESUME):
        return replace(moved, cause=cause, detail=detail)
    if event is Event.ARCHIVED or cause is not None or detail:
        return replace(moved, cause=cause or moved.cause, detail=detail)
    return moved


def holds(wanted: Filter, sandbox: Sandbox, *, busy: bool) -> bool:
    labels = labels_of(sandbox.metadata)
    return (
        (wanted.name is None or sandbox.name == wanted.name)
        and sandbox.id.startswith(wanted.id_prefix or "")
        and (wanted.busy is None or sandbox.state is not State.RUNNING or busy is wanted.busy)
        and all(key in labels and value in (None, labels[key]) for key, value in wanted.metadata.items())
    )
