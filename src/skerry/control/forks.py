"""Forks: new sandboxes with a copy of another one's files and configuration. The source goes on undisturbed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from skerry.control import deciding, making, placing, records, repeats
from skerry.control.deciding import Decided
from skerry.control.deps import Deps
from skerry.model.capture import Capture
from skerry.model.errors import Invalid, SkerryError
from skerry.model.ids import AccountId, TreeId, new_capture_id, new_sandbox_id
from skerry.model.lifecycle import State
from skerry.model.request import Once
from skerry.model.sandbox import Sandbox

MOST = 100
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Wanted:
    account_id: AccountId
    sandbox_id: str
    count: int
    name: str | None
    metadata: Mapping[str, object]
    once: Once | None


async def fork(
    deps: Deps,
    account_id: AccountId,
    sandbox_id: str,
    *,
    count: int = 1,
    name: str | None = None,
    metadata: Mapping[str, object] | None = None,
    once: Once | None = None,
) -> list[Sandbox | SkerryError]:
    """`count` copies, all of one instant, in the order they were asked for: each runs, or is the error that it met.

    The source may run, be stopped or stopping, or have failed. Copied: files, template, limits, timeout, network, env,
    startup command, capabilities, idle timeout. Not copied: processes, history, name, metadata.

    Raises:
        NotFound: As `sandboxes.get`.
        Invalid: `count` is not 1 to MOST.
        Conflict: `sandbox_<state>`: the source is destroyed, or could not be made. `files_lost`: of its files nothing
            is left. The key of `once` is another request's.
        TooBusy, Unavailable: The copy of the source's files could not be made; no sandbox was.
    """
    if not 1 <= count <= MOST:
        raise Invalid(f"'count' is {count}; one call makes 1 to {MOST}.", field="count")
    wanted = _Wanted(account_id, sandbox_id, count, name, metadata or {}, once)
    if once is None:
        return await asyncio.shield(deps.tasks.spawn(_fork(deps, wanted), name=f"fork {sandbox_id[:64]}"))
    return await repeats.shared(deps, account_id, once, partial(_fork, deps, wanted))


async def _fork(deps: Deps, wanted: _Wanted) -> list[Sandbox | SkerryError]:
    if wanted.once is not None:
        await deps.store.find_request(wanted.account_id, wanted.once)  # another request's key: before any copy is made
    instant = _Instant(deps, wanted)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> Sandbox | SkerryError:
        async with gate:
            try:
                return await _copy(deps, wanted, instant, number)
            except SkerryError as error:
                return error

    try:
        async with asyncio.TaskGroup() as group:
            copies = [group.create_task(one(number)) for number in range(wanted.count)]
    finally:
        instant.end()
    if instant.error is not None and all(isinstance(copy.result(), SkerryError) for copy in copies):
        raise instant.error
    return [copy.result() for copy in copies]


async def _copy(deps: Deps, wanted: _Wanted, instant: "_Instant", number: int) -> Sandbox:
    async def decide() -> Decided:
        source, capture = await instant.taken()
        return Decided(_record(deps, source, wanted), capture)

    if wanted.once is None:
        return await making.make(deps, decide)
    # The first one has the client's key itself. No header of a request holds a line's end: so no client's key is like
    # that of a later one.
    own = wanted.once if number == 0 else replace(wanted.once, key=f"{wanted.once.key}\n{number}")
    return await making.make_once(deps, wanted.account_id, decide, own)


@dataclass(slots=True)
class _Instant:
    """The source and its files as they are when the first copy needs them. Several copies share a tree that is held."""

    deps: Deps
    wanted: _Wanted
    error: SkerryError | None = None
    tree: TreeId | None = None
    _taking: asyncio.Task[tuple[Sandbox, Capture]] | None = field(default=None)

    async def taken(self) -> tuple[Sandbox, Capture]:
        if self._taking is None:
            self._taking = self.deps.tasks.spawn(self._take(), name="copy the files of a fork")
        return await asyncio.shield(self._taking)

    async def _take(self) -> tuple[Sandbox, Capture]:
        try:
            source = await records.source(self.deps, self.wanted.account_id, self.wanted.sandbox_id)
            if self.wanted.count == 1:
                return source, deciding.capture_of(source)
            self.tree = new_capture_id()
            self.deps.work.held.add(self.tree)
            await placing.hold(self.deps, source, self.tree)
            return source, Capture(self.tree)
        except SkerryError as error:
            self.error = error
            raise

    def end(self) -> None:
        if self.tree is not None:
            placing.release(self.deps, self.tree)


def _record(deps: Deps, source: Sandbox, wanted: _Wanted) -> Sandbox:
    now = deps.clock.now()
    return Sandbox(
        id=new_sandbox_id(),
        account_id=source.account_id,
        project_id=source.project_id,
        state=State.CREATING,
        generation=1,
        name=wanted.name,
        template=source.template,
        limits=source.limits,
        timeout_s=source.timeout_s,
        network_mode=source.network_mode,
        created_at=now,
        updated_at=now,
        env=dict(source.env),
        metadata=dict(wanted.metadata),
        capabilities=source.capabilities,
        startup_command=source.startup_command,
        idle_timeout_s=source.idle_timeout_s,
        source=source.id,
    )
