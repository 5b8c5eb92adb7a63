"""Sandboxes: create, look up, list, destroy. Writes the intent first; `reconcile` finishes what a crash left."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from skerry.control import endings, repeats, sizes, templates
from skerry.control.deps import Deps
from skerry.model.env import REDACTED
from skerry.model.errors import Conflict, DeadlineExceeded, Invalid, NotFound, Refused, SkerryError, Unavailable
from skerry.model.ids import AccountId, SandboxId, is_id, new_sandbox_id
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.request import Once
from skerry.model.sandbox import Change, Filter, Limits, NetworkMode, Placement, Sandbox, SandboxSpec

# Longer than any provider's own deadlines, whose answers say more: these are for a provider that hangs.
CREATE_DEADLINE_S = 160.0
DESTROY_DEADLINE_S = 160.0
_LOOK_AGAIN_S = 0.05
_ENDED = frozenset({State.FAILED, State.DESTROYING, State.DESTROYED})

# What every command finds set: the home is the workspace, so that what tools remember lives with the files.
BASE_ENV: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "XDG_CACHE_HOME": "/workspace/.cache",
    "XDG_CONFIG_HOME": "/workspace/.config",
    "XDG_DATA_HOME": "/workspace/.local/share",
    "XDG_STATE_HOME": "/workspace/.local/state",
}


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """What a client asks for; None takes the server's default."""

    template: str | None = None
    name: str | None = None
    memory_mb: int | None = None
    cpu_millis: int | None = None
    disk_mb: int | None = None
    timeout_s: int | None = None
    network_mode: NetworkMode | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    model: Mapping[str, object] | None = None
    startup_command: str | None = None
    idle_timeout_s: int | None = None  # 0: it is never reclaimed
    restore_from: str | None = None  # a sandbox, whose files it begins with
    snapshot_id: str | None = None  # a snapshot, whose files it begins with, and whose settings where none are given


async def create(deps: Deps, account_id: AccountId, wanted: NewSandbox, once: Once | None = None) -> Sandbox:
    """Make a sandbox and return it running. Each call makes another one, unless `once` says which calls are the same.

    A caller that leaves meanwhile changes nothing: the sandbox is finished, or fails, and is in the account's list.

    Raises:
        Invalid: A wish that no host here can meet (unknown template, too much memory, …); nothing was made.
        Refused, TooBusy, Unavailable, DeadlineExceeded: It was tried and failed; the record says so.
        Conflict: It was destroyed while it was being made; or the key of `once` is another request's.
    """
    if once is None:
        created = await _create(deps, account_id, wanted, None)
        assert created is not None
        return created
    return await repeats.shared(deps, account_id, once, partial(_create_once, deps, account_id, wanted, once))


async def _create_once(deps: Deps, account_id: AccountId, wanted: NewSandbox, once: Once) -> Sandbox:
    while True:
        made = await deps.store.find_request(account_id, once)
        if made is not None:
            sandbox = await _settled(deps, SandboxId(made))
            if (sandbox.state, sandbox.cause) != (State.FAILED, Cause.CREATE):
                return sandbox
        created = await _create(deps, account_id, wanted, replace(once, instead_of=made))
        if created is not None:
            return created


async def _create(deps: Deps, account_id: AccountId, wanted: NewSandbox, once: Once | None) -> Sandbox | None:
    """None: another process has made one for this request meanwhile."""
    sandbox = await _decide(deps, account_id, wanted)
    deps.creating.add(sandbox.id)
    try:
        standing = await deps.store.add_sandbox(sandbox, once)
    except BaseException:
        deps.creating.discard(sandbox.id)
        raise
    if standing != sandbox.id:
        deps.creating.discard(sandbox.id)
        return None
    return await asyncio.shield(deps.tasks.spawn(_make(deps, sandbox), name=f"create {sandbox.id}"))


async def _settled(deps: Deps, sandbox_id: SandboxId) -> Sandbox:
    """A sandbox once its making has ended, which another process may be at work on, or may have died over."""
    patience = deps.clock.now() + timedelta(seconds=CREATE_DEADLINE_S)
    while True:
        sandbox = await deps.store.get_sandbox(sandbox_id)
        if sandbox.state is not State.CREATING:
            return sandbox
        now = deps.clock.now()
        if now > patience:
            raise Unavailable(f"Sandbox '{sandbox.id}' of this request is still being made. Ask again later.")
        await deps.clock.sleep_until(now + timedelta(seconds=_LOOK_AGAIN_S))


async def get(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """Raises NotFound when there is none, or it is another account's: never told apart."""
    if is_id(sandbox_id, "sbx"):
        sandbox = await deps.store.get_sandbox(SandboxId(sandbox_id))
        if sandbox.account_id == account_id:
            return sandbox
    raise NotFound(f"No sandbox '{sandbox_id[:64]}'.")


async def get_running(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """A sandbox that work can be given to.

    Raises:
        NotFound: As for `get`.
        Conflict: It is in another state; code `sandbox_<state>`.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    if sandbox.state is not State.RUNNING:
        why = f" ({sandbox.cause}: {sandbox.detail})" if sandbox.cause is not None else ""
        raise Conflict(f"Sandbox '{sandbox.id}' is {sandbox.state}{why}.", code=f"sandbox_{sandbox.state}")
    return sandbox


async def awake(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """A sandbox that work is given to now: it runs, resumed first if it was stopped, and was used just now.

    Raises:
        NotFound: As for `get`.
        Conflict: It cannot run; code `sandbox_<state>`.
        Refused, TooBusy, Unavailable, DeadlineExceeded: As `resuming.resume`.
    """
    raise NotImplementedError


async def list_page(
    deps: Deps,
    account_id: AccountId,
    *,
    states: Sequence[State] | None,
    where: Filter,
    limit: int,
    before: str | None,
) -> tuple[Sequence[Sandbox], SandboxId | None]:
    """One page, newest first, and the `before` of the next one.

    Raises:
        Invalid: `before` is no sandbox of this account.
    """
    if before is not None:
        try:
            await get(deps, account_id, before)
        except NotFound as error:
            raise Invalid(f"'{before[:64]}' is no sandbox of yours to page from.", field="before") from error
    found = await deps.store.list_sandboxes(
        account_id=account_id,
        states=states,
        where=where,
        limit=limit + 1,
        before=None if before is None else SandboxId(before),
    )
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


async def relabel(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, name: str | None, metadata: Mapping[str, object] | None
) -> Sandbox:
    """Replace name and metadata, in any state; None leaves one as it is, an empty one takes it away. Safe to repeat.

    Raises:
        NotFound: As for `get`.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    return await deps.store.change_sandbox(sandbox.id, Change(name=name, metadata=metadata))


async def set_env(deps: Deps, account_id: AccountId, sandbox_id: str, env: Mapping[str, str]) -> Sandbox:
    """Replace the environment that commands start with from now on. What runs keeps its own. Safe to repeat.

    Nothing is told to the sandbox: its environment comes with each command, from the record.

    Raises:
        NotFound: As for `get`.
        Conflict: It has ended; code `sandbox_<state>`.
        Invalid: A value is what lists show in place of one.
    """
    check_env(env)
    sandbox = await get(deps, account_id, sandbox_id)
    states = [state for state in State if state not in _ENDED]
    return await deps.store.change_sandbox(sandbox.id, Change(env=env), states=states)


def check_env(env: Mapping[str, str]) -> None:
    """Raises Invalid where it is too large, or is what a list showed: that would take the place of the real value."""
    sizes.check_env(env)
    for name, value in env.items():
        if value == REDACTED:
            raise Invalid(
                f"'{REDACTED}' stands in lists for the value of '{name}'. Send the value.", field=f"env.{name}"
            )


async def destroy(deps: Deps, account_id: AccountId, sandbox_id: str) -> None:
    """End a sandbox and everything in it, in any state. Safe to call twice, and at once.

    Raises:
        NotFound: As for `get`.
        Unavailable, DeadlineExceeded: It is on record, and is finished as soon as the node answers.
    """
    sandbox = await get(deps, account_id, sandbox_id)
    while sandbox.state not in (State.DESTROYING, State.DESTROYED):
        try:
            sandbox = await deps.store.transition(sandbox, Event.DESTROY)
        except Conflict:
            # It moved under us. Each move brings it nearer to its end, so this loop has one too.
            sandbox = await deps.store.get_sandbox(sandbox.id)
    if sandbox.state is State.DESTROYING:
        await asyncio.shield(deps.tasks.spawn(finish_destroy(deps, sandbox), name=f"destroy {sandbox.id}"))


async def finish_destroy(deps: Deps, sandbox: Sandbox) -> None:
    """What `destroy` does once the intent is on record; the reconciler calls it for what a crash left."""
    try:
        async with asyncio.timeout(DESTROY_DEADLINE_S):
            await deps.provider.destroy(sandbox.id)
    except TimeoutError as error:
        raise DeadlineExceeded(f"Destroying '{sandbox.id}' takes long. It goes on; look again later.") from error
    await endings.settle_commands(deps, sandbox.id, None)
    await deps.store.delete_shells(sandbox.id)
    try:
        await deps.store.transition(sandbox, Event.GONE)
    except Conflict:
        if (await deps.store.get_sandbox(sandbox.id)).state is not State.DESTROYED:
            raise


async def fail_create(deps: Deps, sandbox: Sandbox, reason: str) -> None:
    """Record a create that did not come to its end. What it left at the provider is destroyed by the reconciler."""
    try:
        await deps.store.transition(sandbox, Event.BROKE, cause=Cause.CREATE, detail=reason)
    except Conflict:
        return  # destroyed meanwhile: that has the last word


def spec_of(sandbox: Sandbox) -> SandboxSpec:
    return SandboxSpec(
        id=sandbox.id,
        generation=sandbox.generation,
        template=sandbox.template,
        limits=sandbox.limits,
        network_mode=sandbox.network_mode,
        hostname=sandbox.id.replace("_", "-"),
        env=BASE_ENV,
    )


async def _make(deps: Deps, sandbox: Sandbox) -> Sandbox:
    try:
        async with deps.telemetry.create():
            placement = await _place(deps, sandbox)
            sandbox = await _created(deps, sandbox, placement)
    except Conflict:
        raise
    except SkerryError as error:
        await fail_create(deps, sandbox, error.message)
        error.message = f"{error.message} The attempt is recorded as '{sandbox.id}'."
        raise
    finally:
        deps.creating.discard(sandbox.id)
    from skerry.control import startup  # which stands on this module

    startup.run_due_soon(deps, sandbox)
    return sandbox


async def _place(deps: Deps, sandbox: Sandbox) -> Placement:
    try:
        return await _ask(deps, sandbox)
    except Refused as error:
        if error.code != "template_not_ready":
            raise
    await templates.ensure_built(deps, sandbox.template)
    return await _ask(deps, sandbox)


async def _ask(deps: Deps, sandbox: Sandbox) -> Placement:
    try:
        async with asyncio.timeout(CREATE_DEADLINE_S):
            return await deps.provider.create(spec_of(sandbox))
    except TimeoutError as error:
        raise DeadlineExceeded(f"The sandbox did not come up within {CREATE_DEADLINE_S:.0f} s.") from error
    except NotFound as error:
        # It was there once: look again at the next create.
        deps.known_templates.discard(sandbox.template)
        raise Invalid(error.message, code="unknown_template", field="template") from error


async def _created(deps: Deps, sandbox: Sandbox, placement: Placement) -> Sandbox:
    try:
        return await deps.store.transition(sandbox, Event.CREATED, placement=placement)
    except Conflict:
        # Destroyed while it was being made. The destroy may have run before there was anything to destroy.
        await deps.provider.destroy(sandbox.id)
        raise


async def _decide(deps: Deps, account_id: AccountId, wanted: NewSandbox) -> Sandbox:
    config = deps.config
    template = wanted.template or config.default_template
    check_env(wanted.env)
    _at_most("memory_mb", wanted.memory_mb, config.max_memory_mb)
    _at_most("disk_mb", wanted.disk_mb, config.pool_mb)
    _at_most("timeout_seconds", wanted.timeout_s, config.max_command_timeout_s)
    if wanted.startup_command:
        sizes.check_startup(wanted.startup_command, wanted.env)
    await _check_host(deps, wanted)
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
