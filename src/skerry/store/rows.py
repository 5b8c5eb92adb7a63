"""Records to rows and back. Pure; the order of columns is the tables'."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from skerry.model.account import Account, ApiKey
from skerry.model.capture import Archive
from skerry.model.command import Command, CommandCause, CommandKind, CommandStatus, Exit, TerminalSize
from skerry.model.ids import AccountId, CommandId, KeyId, ProjectId, SandboxId
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Limits, NetworkMode, Sandbox
from skerry.model.ticket import Ticket
from skerry.store.box import Box
from skerry.store.sealing import SANDBOX_ENV, open_env, seal_env

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

Columns = Sequence[Any]  # a row, in its table's order


def to_us(at: datetime) -> int:
    return (at - _EPOCH) // _US


def from_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def account_row(account: Account) -> dict[str, Any]:
    return {
        "id": account.id,
        "name": account.name,
        "plan": account.plan,
        "default_project_id": account.default_project_id,
        "created_at_us": to_us(account.created_at),
    }


def account_of(row: Columns) -> Account:
    (id_, name, plan, project, created) = row
    return Account(AccountId(id_), name, plan, ProjectId(project), from_us(created))


def key_row(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "account_id": key.account_id,
        "name": key.name,
        "secret_hash": key.secret_hash,
        "created_at_us": to_us(key.created_at),
        "last_used_at_us": None if key.last_used_at is None else to_us(key.last_used_at),
        "hint": key.hint or None,
    }


def key_of(row: Columns) -> ApiKey:
    (id_, account, name, secret_hash, created, used, hint) = row
    used_at = None if used is None else from_us(used)
    return ApiKey(KeyId(id_), AccountId(account), name, bytes(secret_hash), from_us(created), used_at, hint or "")


def sandbox_row(sandbox: Sandbox, box: Box) -> dict[str, Any]:
    return {
        "id": sandbox.id,
        "account_id": sandbox.account_id,
        "project_id": sandbox.project_id,
        "state": sandbox.state.value,
        "generation": sandbox.generation,
        "name": sandbox.name,
        "template": sandbox.template,
        "limits": json.dumps(asdict(sandbox.limits)),
        "timeout_s": sandbox.timeout_s,
        "network_mode": sandbox.network_mode.value,
        "created_at_us": to_us(sandbox.created_at),
        "updated_at_us": to_us(sandbox.updated_at),
        "env": seal_env(box, sandbox.env, SANDBOX_ENV, sandbox.id),
        "metadata": json.dumps(dict(sandbox.metadata)),
        "capabilities": json.dumps(sandbox.capabilities),
        "model": None if sandbox.model is None else json.dumps(dict(sandbox.model)),
        "runtime": sandbox.runtime,
        "template_digest": sandbox.template_digest,
        "cause": None if sandbox.cause is None else sandbox.cause.value,
        "detail": sandbox.detail,
        "startup_command": sandbox.startup_command,
        "archive": archive_row(sandbox.archive),
        "active_at_us": None if sandbox.active_at is None else to_us(sandbox.active_at),
        "idle_timeout_s": sandbox.idle_timeout_s,
        "source": sandbox.source,
    }


def archive_row(archive: Archive | None) -> str | None:
    return None if archive is None else json.dumps(asdict(archive))


def archive_of(text: str | None) -> Archive | None:
    return None if text is None else Archive(**json.loads(text))


def sandbox_of(row: Columns, box: Box) -> Sandbox:
    # By position: access by name costs as much as the query on the path of every request.
    (_, id_, account, project, state, generation, name, template, limits, timeout_s, network, created, updated) = row[
        :13
    ]
    (env, metadata, capabilities, model, runtime, digest, cause, detail, startup) = row[13:22]
    (archive, active, idle_s, source) = row[22:]
    return Sandbox(
        id=SandboxId(id_),
        account_id=AccountId(account),
        project_id=ProjectId(project),
        state=State(state),
        generation=generation,
        name=name,
        template=template,
        limits=Limits(**json.loads(limits)),
        timeout_s=timeout_s,
        network_mode=NetworkMode(network),
        created_at=from_us(created),
        updated_at=from_us(updated),
        env=open_env(box, env, SANDBOX_ENV, id_),
        metadata=json.loads(metadata),
        capabilities=tuple(json.loads(capabilities)),
        model=None if model is None else json.loads(model),
        runtime=runtime,
        template_digest=digest,
        cause=None if cause is None else Cause(cause),
        detail=detail,
        startup_command=startup,
        archive=archive_of(archive),
        active_at=None if active is None else from_us(active),
        idle_timeout_s=idle_s,
        source=source,
    )


EVENT_COLUMNS = ("sandbox_id", "generation", "event", "from_state", "to_state", "cause", "detail", "at_us")


COMMAND_COLUMNS = (
    "id",
    "sandbox_id",
    "account_id",
    "command",
    "status",
    "working_directory",
    "timeout_s",
    "started_at_us",
    "kind",
    "takes_input",
    "cols",
    "rows",
    "name",
)
_NO_DEADLINE = 0  # the column was made when every command had one


def command_row(command: Command) -> dict[str, Any]:
    return {
        "id": command.id,
        "sandbox_id": command.sandbox_id,
        "account_id": command.account_id,
        "command": command.command,
        "status": command.status.value,
        "working_directory": command.working_directory,
        "timeout_s": _NO_DEADLINE if command.timeout_s is None else command.timeout_s,
        "started_at_us": to_us(command.started_at),
        "kind": command.kind.value,
        "takes_input": int(command.takes_input),
        "cols": None if command.terminal is None else command.terminal.cols,
        "rows": None if command.terminal is None else command.terminal.rows,
        "name": command.name,
    }


EXIT_COLUMNS = (
    "status",
    "completed_at_us",
    "exit_code",
    "signal",
    "timed_out",
    "output_bytes",
    "duration_ms",
    "cause",
    "detail",
)


def exit_row(status: CommandStatus, exit: Exit, at: datetime) -> dict[str, Any]:
    return {
        "status": status.value,
        "completed_at_us": to_us(at),
        "exit_code": exit.code,
        "signal": exit.signal,
        "timed_out": int(exit.timed_out),
        "output_bytes": exit.offset,
        "duration_ms": exit.duration_ms,
        "cause": None if exit.cause is None else exit.cause.value,
        "detail": exit.detail,
    }


def command_of(row: Columns) -> Command:
    (_, id_, sandbox, account, text, status, directory, timeout_s, started, completed) = row[:10]
    (kind, takes_input, cols, rows, name) = row[17:22]
    return Command(
        id=CommandId(id_),
        sandbox_id=SandboxId(sandbox),
        account_id=AccountId(account),
        command=text,
        status=CommandStatus(status),
        working_directory=directory,
        timeout_s=None if timeout_s == _NO_DEADLINE else timeout_s,
        started_at=from_us(started),
        completed_at=None if completed is None else from_us(completed),
        exit=None if completed is None else _exit_of(row),
        kind=CommandKind(kind),
        takes_input=bool(takes_input),
        terminal=None if cols is None else TerminalSize(cols, rows),
        name=name,
    )


def _exit_of(row: Columns) -> Exit:
    (code, signal, timed_out, offset, duration_ms, cause, detail) = row[10:17]
    return Exit(
        code, signal, bool(timed_out), offset, duration_ms, None if cause is None else CommandCause(cause), detail or ""
    )


def ticket_row(ticket: Ticket) -> dict[str, Any]:
    return {
        "secret_hash": ticket.secret_hash,
        "account_id": ticket.account_id,
        "command_id": ticket.command_id,
        "expires_at_us": to_us(ticket.expires_at),
    }


def ticket_of(row: Columns) -> Ticket:
    (secret_hash, account, command, expires) = row
    return Ticket(bytes(secret_hash), AccountId(account), CommandId(command), from_us(expires))
