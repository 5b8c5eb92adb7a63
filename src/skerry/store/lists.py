"""Queries that find sandboxes and count what they may use. Built here, run by the store."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, exists, func, select, text

from skerry.model.command import CommandFilter
from skerry.model.ids import AccountId, SandboxId
from skerry.model.lifecycle import State
from skerry.model.metrics import Population
from skerry.model.sandbox import Filter, Promised
from skerry.store.tables import commands, sandbox_labels, sandboxes

# Literals, not parameters: only then are the partial indexes used.
_RUNS = text("commands.status = 'running' AND commands.kind = 'command'")
_THERE = text("sandboxes.state <> 'destroyed'")


def sandboxes_query(account_id: AccountId | None, states: Sequence[State] | None, where: Filter) -> Select[Any]:
    """Newest first."""
    of = sandboxes.c
    query = select(sandboxes).order_by(of.seq.desc())
    if account_id is not None:
        query = query.where(of.account_id == account_id)
    if states is not None:
        query = query.where(of.state.in_([state.value for state in states]))
        if State.DESTROYED not in states:
            query = query.where(_THERE)
    if where.name is not None:
        query = query.where(of.name == where.name)
    if where.id_prefix is not None:
        query = query.where(func.substr(of.id, 1, len(where.id_prefix)) == where.id_prefix)
    if where.busy is not None:
        works = exists().where(_RUNS, commands.c.sandbox_id == of.id)
        query = query.where((of.state != State.RUNNING.value) | (works if where.busy else ~works))
    label = sandbox_labels.c
    for key, value in where.metadata.items():
        entry = exists().where(label.sandbox_id == of.id, label.key == key)
        query = query.where(entry if value is None else entry.where(label.value == value))
    return query


def behind(query: Select[Any], before: SandboxId) -> Select[Any]:
    """Those that were made before this one."""
    return query.where(sandboxes.c.seq < select(sandboxes.c.seq).where(sandboxes.c.id == before).scalar_subquery())


def commands_query(where: CommandFilter) -> Select[Any]:
    """Newest first."""
    of = commands.c
    query = select(commands).order_by(of.seq.desc())
    if where.statuses is not None:
        query = query.where(of.status.in_([status.value for status in where.statuses]))
    if where.kinds is not None:
        query = query.where(of.kind.in_([kind.value for kind in where.kinds]))
    if where.before is not None:
        query = query.where(of.seq < select(of.seq).where(of.id == where.before).scalar_subquery())
    return query


def promised_query(account_id: AccountId) -> Select[Any, Any, int]:
    """Few rows: most sandboxes have limits that others have too."""
    of = sandboxes.c
    chosen = select(of.state, of.limits, func.count()).where(of.account_id == account_id, _THERE)
    return chosen.group_by(of.state, of.limits)


def promised_of(rows: Iterable[Any]) -> Sequence[Promised]:
    """One for each state that there is."""
    found: dict[str, Promised] = {}
    for state, limits, count in rows:
        each = json.loads(limits)
        before = found.get(state, Promised(State(state), 0, 0, 0, 0))
        found[state] = Promised(
            before.state,
            before.sandboxes + count,
            before.memory_mb + count * each["memory_mb"],
            before.cpu_millis + count * each["cpu_millis"],
            before.disk_mb + count * each["disk_mb"],
        )
    return list(found.values())


def running_query(account_id: AccountId) -> Select[Any, int]:
    of = commands.c
    return select(of.sandbox_id, func.count()).where(_RUNS, of.account_id == account_id).group_by(of.sandbox_id)


def population(connection: Connection) -> Population:
    """Both counts from one instant."""
    of = sandboxes.c
    by = (of.state, of.runtime, of.template)
    rows: Iterable[Any] = connection.execute(select(*by, func.count()).where(_THERE).group_by(*by)).all()
    running = connection.execute(select(func.count()).select_from(commands).where(_RUNS)).scalar_one()
    return Population({(State(row[0]), row[1], row[2]): row[3] for row in rows}, running)
