"""The one way in which compute comes to be, for a create, a resume, a fork and whatever else: around a capture."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import structlog

from skerry.control import archives, templates
from skerry.control.deps import Deps
from skerry.model.capture import EMPTY, Archive, Capture
from skerry.model.errors import Conflict, DeadlineExceeded, Invalid, NotFound, Refused, SkerryError
from skerry.model.ids import SandboxId, TreeId, new_capture_id
from skerry.model.lifecycle import State
from skerry.model.sandbox import Placement, Sandbox, SandboxSpec

# Longer than any provider's own deadlines, whose answers say more: these are for a provider that hangs.
CREATE_DEADLINE_S = 160.0
_QUICK_S = 60.0  # for what costs the same at any size
_log = structlog.get_logger()

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


async def place(deps: Deps, sandbox: Sandbox, capture: Capture = EMPTY) -> Placement:
    """Make a recorded sandbox's compute, around the files of `capture`, which are fetched if the provider lacks them.

    Raises:
        Invalid: `unknown_template`.
        Conflict: `files_lost`: the provider lacks the files, and no archive has them. Or its generation is over.
        Refused, TooBusy, Unavailable, DeadlineExceeded: It cannot be made now.
    """
    try:
        return await _built(deps, sandbox, capture.tree)
    except NotFound as error:
        if capture.tree is None:
            raise
        if capture.archive is None:
            raise files_lost(capture.tree) from error
    async with _fetched(deps, sandbox, capture.tree, capture.archive) as tree:
        return await _built(deps, sandbox, tree)


async def hold(deps: Deps, source: Sandbox, tree: TreeId) -> None:
    """Have the provider hold a copy of a sandbox's files as `tree`.

    Raises:
        Conflict: `files_lost`.
        TooBusy, Unavailable, DeadlineExceeded
    """
    try:
        await capture(deps, source, tree)
    except Conflict:
        archive = stored(source)
        if archive is None:
            raise
        await archives.fetch(deps, source.account_id, tree, archive, source.id)


async def capture(deps: Deps, source: Sandbox, tree: TreeId) -> None:
    """As `hold`, from what the provider has alone."""
    try:
        async with asyncio.timeout(_QUICK_S):
            await deps.provider.capture(source.id, tree)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The files of '{source.id}' were not copied within {_QUICK_S:.0f} s.") from error
    except NotFound as error:
        raise files_lost(source.id) from error


def release(deps: Deps, tree: TreeId) -> None:
    """Hold a copy no more that was in `deps.work.held`. What cannot be done now is done by the reconciler."""
    deps.tasks.spawn(_release(deps, tree), name=f"let go of {tree}")


async def _release(deps: Deps, tree: TreeId) -> None:
    try:
        async with asyncio.timeout(_QUICK_S):
            await deps.provider.drop(tree)
    except (SkerryError, TimeoutError) as error:
        _log.info("a copy of files is let go later", tree=tree, reason=str(error))
    finally:
        deps.work.held.discard(tree)


def stored(source: Sandbox) -> Archive | None:
    """The archive that has a sandbox's files as they are; since a resume there is none."""
    return source.archive if source.state is State.STOPPED else None


def files_lost(tree: TreeId | SandboxId) -> Conflict:
    return Conflict(
        f"The files of '{tree}' are lost: its node does not hold them, and the object store was not given them yet.",
        code="files_lost",
    )


def came_up(deps: Deps, sandbox: Sandbox) -> None:
    """What is due once a sandbox runs."""
    from skerry.control import startup  # which stands on this module

    deps.uses.note(sandbox.id, deps.clock.now())
    startup.run_due_soon(deps, sandbox)


@asynccontextmanager
async def _fetched(deps: Deps, sandbox: Sandbox, tree: TreeId, archive: Archive) -> AsyncGenerator[TreeId]:
    """Another sandbox's files are not put in their place, where it may come back itself meanwhile."""
    if tree == sandbox.id or not tree.startswith("sbx_"):
        await archives.fetch(deps, sandbox.account_id, tree, archive, sandbox.id)
        yield tree
        return
    copy = new_capture_id()
    deps.work.held.add(copy)
    try:
        await archives.fetch(deps, sandbox.account_id, copy, archive, sandbox.id)
        yield copy
    finally:
        release(deps, copy)


async def _built(deps: Deps, sandbox: Sandbox, tree: TreeId | None) -> Placement:
    try:
        return await _ask(deps, sandbox, tree)
    except Refused as error:
        if error.code != "template_not_ready":
            raise
    await templates.ensure_built(deps, sandbox.template)
    return await _ask(deps, sandbox, tree)


async def _ask(deps: Deps, sandbox: Sandbox, tree: TreeId | None) -> Placement:
    try:
        async with asyncio.timeout(CREATE_DEADLINE_S):
            return await deps.provider.create(spec_of(sandbox), tree)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The sandbox did not come up within {CREATE_DEADLINE_S:.0f} s.") from error
    except NotFound as error:
        if error.code == "tree_missing":
            raise
        # It was there once: look again at the next create.
        deps.known_templates.discard(sandbox.template)
        raise Invalid(error.message, code="unknown_template", field="template") from error
