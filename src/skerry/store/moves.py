"""Sandboxes' records: looked up, added, and moved from state to state. Part of `SqlStore`'s transactions."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, func, insert, select, text, update

from skerry.model.capture import Archive
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Cause, Event, State, advance
from skerry.model.request import Once
from skerry.model.sandbox import Placement, Sandbox, labels_of
from skerry.store import changes, once, rows
from skerry.store.box import Box
from skerry.store.prepared import Prepared
from skerry.store.sealing import NOTHING
from skerry.store.tables import commands, sandbox_events, sandboxes

_OF = sandboxes.c
_SANDBOX = Prepared(select(sandboxes).where(_OF.id == bindparam("id_")))
_STATE = Prepared(select(_OF.state, _OF.generation).where(_OF.id == bindparam("id_")))
# A literal, not a parameter: only then is the partial index of the running ones used.
ACTIVE = text("status = 'running' AND kind = 'command'")
BUSY = Prepared(select(commands.c.seq).where(ACTIVE, commands.c.sandbox_id == bindparam("id_")).limit(1))
_ADD_EVENT = Prepared(insert(sandbox_events), rows.EVENT_COLUMNS)
_NONE = ""  # takes a value away where None would leave it


def _given(name: str) -> Any:
    return func.coalesce(bindparam(f"new_{name}", type_=Text()), _OF[name])


_MOVE = Prepared(
    update(sandboxes)
    .where(
        _OF.id == bindparam("id_"),
        _OF.state == bindparam("from_"),
        _OF.generation == bindparam("generation_"),
    )
    .values({"state": bindparam("to_"), "updated_at_us": bindparam("at_")})
    .values({"generation": _OF.generation + bindparam("more_")})
    .values({"active_at_us": func.coalesce(bindparam("used_", type_=BigInteger()), _OF.active_at_us)})
    .values({name: _given(name) for name in ("runtime", "template_digest", "detail", "env")})
    .values({name: func.nullif(_given(name), _NONE) for name in ("cause", "archive")})
    .returning(*_OF)
)


@dataclass(frozen=True, slots=True)
class Move:
    """One that is asked for. See `seams.Store.transition`."""

    sandbox: Sandbox
    event: Event
    at: datetime
    placement: Placement | None = None
    cause: Cause | None = None
    detail: str = ""
    archive: Archive | None = None
    unless_busy: bool = False

    def change(self, target: State) -> dict[str, Any]:
        at = rows.to_us(self.at)
        anew = self.event in (Event.STOP, Event.RESUME)
        gone = target is State.DESTROYED
        said = anew or self.event is Event.ARCHIVED or self.cause is not None or self.detail
        return {
            "id_": self.sandbox.id,
            "from_": self.sandbox.state.value,
            "generation_": self.sandbox.generation,
            "to_": target.value,
            "at_": at,
            "more_": 1 if self.event is Event.RESUME else 0,
            "used_": at if self.event is Event.RESUME else None,
            "new_runtime": None if self.placement is None else self.placement.runtime,
            "new_template_digest": None if self.placement is None else self.placement.template_digest,
            "new_cause": self.cause.value if self.cause is not None else _NONE if anew else None,
            "new_detail": self.detail if said else None,
            # A sandbox that is gone has no use for its secrets, and nothing is kept of its files.
            "new_env": NOTHING if gone else None,
            "new_archive": _NONE if gone else rows.archive_row(self.archive),
        }


def get(connection: Connection, box: Box, sandbox_id: SandboxId) -> Sandbox:
    return rows.sandbox_of(row_of(connection, sandbox_id), box)


def row_of(connection: Connection, sandbox_id: SandboxId) -> rows.Columns:
    """Raises NotFound."""
    row = _SANDBOX.run(connection, {"id_": sandbox_id})
    if row is None:
        raise NotFound(f"No sandbox '{sandbox_id}'.")
    return row


def check_running(connection: Connection, sandbox_id: SandboxId) -> int:
    """The generation of a sandbox that runs.

    Raises:
        Conflict: It does not (`sandbox_<state>`), or there is none.
    """
    row = _STATE.run(connection, {"id_": sandbox_id})
    state = State.DESTROYED.value if row is None else row[0]
    if row is None or state != State.RUNNING.value:
        raise not_running(sandbox_id, state)
    return row[1]


def not_running(sandbox_id: SandboxId, state: str) -> Conflict:
    return Conflict(f"Sandbox '{sandbox_id}' is {state}: no command can be given to it.", code=f"sandbox_{state}")


def add(connection: Connection, box: Box, sandbox: Sandbox, wanted: Once | None) -> SandboxId:
    row = rows.sandbox_row(sandbox, box)
    earlier = once.claim(connection, box, sandbox.account_id, wanted, sandbox.id, row["created_at_us"])
    if earlier is not None:
        return SandboxId(earlier)
    connection.execute(insert(sandboxes), row)
    _ADD_EVENT.run(connection, _event(Move(sandbox, Event.CREATED, sandbox.created_at), "add", None, sandbox.state))
    if labels := labels_of(sandbox.metadata):
        changes.label(connection, sandbox.id, labels)
    return sandbox.id


def move(connection: Connection, box: Box, wanted: Move) -> Sandbox:
    sandbox, event = wanted.sandbox, wanted.event
    target = advance(sandbox.state, event)
    if wanted.unless_busy and BUSY.run(connection, {"id_": sandbox.id}) is not None:
        raise busy(sandbox)
    moved = _MOVE.run(connection, wanted.change(target))
    if moved is None:
        raise _moved_meanwhile(get(connection, box, sandbox.id), event)
    _ADD_EVENT.run(connection, _event(wanted, event.value, sandbox.state, target))
    return rows.sandbox_of(moved, box)


def busy(sandbox: Sandbox) -> Conflict:
    return Conflict(
        f"Sandbox '{sandbox.id}' runs a command. Wait for its end, kill it, or stop with 'force'.", code="sandbox_busy"
    )


def _moved_meanwhile(now: Sandbox, event: Event) -> Conflict:
    return Conflict(
        f"Sandbox '{now.id}' became {now.state} meanwhile and did not take '{event}'. Look again and decide anew.",
        code=f"sandbox_{now.state}",
    )


def _event(wanted: Move, name: str, from_state: State | None, to_state: State) -> dict[str, Any]:
    return {
        "sandbox_id": wanted.sandbox.id,
        "generation": wanted.sandbox.generation,
        "event": name,
        "from_state": from_state,
        "to_state": to_state,
        "cause": wanted.cause,
        "detail": wanted.detail,
        "at_us": rows.to_us(wanted.at),
    }
