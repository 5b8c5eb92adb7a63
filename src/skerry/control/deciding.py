"""What a new sandbox will be like: wishes checked, defaults filled in, a snapshot's settings taken. Makes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from skerry.control import records, sizes, snapshots, templates
from skerry.control.deps import Deps
from skerry.control.placing import stored
from skerry.model.capture import EMPTY, Capture
from skerry.model.env import REDACTED
from skerry.model.errors import Conflict, Invalid, NotFound
from skerry.model.ids import AccountId, TreeId, new_sandbox_id
from skerry.model.lifecycle import State
from skerry.model.sandbox import Limits, NetworkMode, Sandbox
from skerry.model.snapshot import Snapshot

_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """What a client asks for; None takes the snapshot's, where one is given, else the server's default."""

    template: str | None = None
    name: str | None = None
    memory_mb: int | None = None
    cpu_millis: int | None = None
    disk_mb: int | None = None
    timeout_s: int | None = None
    network_mode: NetworkMode | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # empty: as None
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    model: Mapping[str, object] | None = None
    startup_command: str | None = None  # empty: none, whatever the snapshot has
    idle_timeout_s: int | None = None  # 0: it is never reclaimed
    restore_from: str | None = None  # a sandbox, whose files it begins with
    snapshot_id: str | None = None  # a snapshot, whose files it begins with; its template wins


@dataclass(frozen=True, slots=True)
class Decided:
    """A record to be, and what its files begin with."""

    sandbox: Sandbox
    capture: Capture = EMPTY


async def decide(deps: Deps, account_id: AccountId, wanted: NewSandbox) -> Decided:
    """Raises Invalid for what this server or the machine cannot give; the field is named."""
    if wanted.restore_from is not None and wanted.snapshot_id is not None:
        raise Invalid("'restore_from' and 'snapshot_id' exclude each other: give one.", field="restore_from")
    await _check(deps, wanted)
    if wanted.snapshot_id is not None:
        snapshot = await _snapshot(deps, account_id, wanted.snapshot_id)
        sandbox = await _record(deps, account_id, _with(wanted, snapshot))
        sandbox = replace(sandbox, capabilities=snapshot.capabilities, source=snapshot.id)
        return Decided(sandbox, Capture(TreeId(snapshot.id), snapshot.archive))
    sandbox = await _record(deps, account_id, wanted)
    if wanted.restore_from is None:
        return Decided(sandbox)
    source = await _source(deps, account_id, wanted.restore_from)
    return Decided(replace(sandbox, source=source.id), capture_of(source))


def capture_of(source: Sandbox) -> Capture:
    """A sandbox's files, as another one begins with them."""
    return Capture(TreeId(source.id), stored(source))


def check_env(env: Mapping[str, str]) -> None:
    """Raises Invalid where it is too large, or is what a list showed: that would take the place of the real value."""
    sizes.check_env(env)
    for name, value in env.items():
        if value == REDACTED:
            raise Invalid(
                f"'{REDACTED}' stands in lists for the value of '{name}'. Send the value.", field=f"env.{name}"
            )


async def _snapshot(deps: Deps, account_id: AccountId, snapshot_id: str) -> Snapshot:
    try:
        return await snapshots.get_ready(deps, account_id, snapshot_id)
    except NotFound as error:
        raise Invalid(error.message, code="unknown_snapshot", field="snapshot_id") from error


async def _source(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    try:
        return await records.source(deps, account_id, sandbox_id)
    except NotFound as error:
        raise Invalid(error.message, code="unknown_sandbox", field="restore_from") from error
    except Conflict as error:
        raise Conflict(f"{error.message} No files can be taken from it.", code=error.code) from error


def _with(wanted: NewSandbox, snapshot: Snapshot) -> NewSandbox:
    limits = snapshot.limits
    disk_mb = wanted.disk_mb or limits.disk_mb
    if snapshot.size_bytes is not None and snapshot.size_bytes > disk_mb * _MB:
        raise Invalid(
            f"'disk_mb' is {disk_mb}; the files of '{snapshot.id}' take {-(-snapshot.size_bytes // _MB)}.",
            field="disk_mb",
        )
    startup = snapshot.startup_command if wanted.startup_command is None else wanted.startup_command
    return replace(
        wanted,
        template=snapshot.template,
        memory_mb=wanted.memory_mb or limits.memory_mb,
        cpu_millis=wanted.cpu_millis or limits.cpu_millis,
        disk_mb=disk_mb,
        timeout_s=wanted.timeout_s or snapshot.timeout_s,
        network_mode=wanted.network_mode or snapshot.network_mode,
        env=wanted.env or dict(snapshot.env),
        startup_command=startup,
        idle_timeout_s=snapshot.idle_timeout_s if wanted.idle_timeout_s is None else wanted.idle_timeout_s,
    )


async def _check(deps: Deps, wanted: NewSandbox) -> None:
    """What the client itself has asked for: what it takes from a snapshot was in force once."""
    config = deps.config
    check_env(wanted.env)
    _at_most("memory_mb", wanted.memory_mb, config.max_memory_mb)
    _at_most("disk_mb", wanted.disk_mb, config.pool_mb)
    _at_most("timeout_seconds", wanted.timeout_s, config.max_command_timeout_s)
    await _check_host(deps, wanted)


async def _record(deps: Deps, account_id: AccountId, wanted: NewSandbox) -> Sandbox:
    config = deps.config
    template = wanted.template or config.default_template
    if wanted.startup_command:
        sizes.check_startup(wanted.startup_command, wanted.env)
    await templates.check(deps, template)
    account = await deps.store.get_account(account_id)
    now = deps.clock.now()
    return Sandbox(
        id=new_sandbox_id(),
        account_id=account.id,
        project_id=account.default_project_id,
        state=State.CREATING,
        generation=1,
        name=wanted.name,
        template=template,
        limits=Limits(
            memory_mb=wanted.memory_mb or config.memory_mb,
            cpu_millis=wanted.cpu_millis or config.cpu_millis,
            processes=config.processes,
            disk_mb=wanted.disk_mb or config.disk_mb,
            inodes=config.inodes,
        ),
        timeout_s=wanted.timeout_s or config.command_timeout_s,
        network_mode=wanted.network_mode or NetworkMode.BRIDGE,
        created_at=now,
        updated_at=now,
        env=dict(wanted.env),
        metadata=dict(wanted.metadata),
        model=None if wanted.model is None else dict(wanted.model),
        startup_command=wanted.startup_command or None,
        idle_timeout_s=config.idle_timeout_s if wanted.idle_timeout_s is None else wanted.idle_timeout_s,
    )


async def _check_host(deps: Deps, wanted: NewSandbox) -> None:
    """Refuse limits that the machine cannot hold: they would be none."""
    names = ("memory_mb", "cpu_millis", "disk_mb")
    asked = {name: value for name in names if (value := getattr(wanted, name)) is not None}
    if not asked:
        return
    host = await deps.provider.capabilities()
    for name, value in asked.items():
        has = getattr(host, name)
        if has and value > has:
            raise Invalid(f"'{name}' is {value}; the machine has {has}. GET /v1/capabilities tells.", field=name)


def _at_most(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise Invalid(f"'{name}' is {value}; this server allows {most} at most.", field=name)
