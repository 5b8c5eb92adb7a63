"""How a sandbox is made from the parts of the node, and unmade: the steps, without the bookkeeping.

Every step that removes is success when there is nothing to remove, so `remove` undoes any half of `start`.
"""

import asyncio
import shutil
from collections.abc import Coroutine
from typing import Any

import structlog

from skerry.guest.connection import Connection, connect
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.bundle import Bundle, IdRange
from skerry.model.errors import SkerryError
from skerry.model.ids import SandboxId, TreeId, is_id
from skerry.model.leak import LeakKind
from skerry.node.parts import Parts
from skerry.node.records import Record, Stage
from skerry.node.tasks import spawn, through
from skerry.node.traces import entries

CONFIGURE_S = 10.0

log = structlog.get_logger()


async def start(parts: Parts, record: Record, source: TreeId | None, group: asyncio.TaskGroup) -> Connection:
    """Make the sandbox and greet sbxd in it; `source` is the tree that its workspace is a copy of.

    Where it fails, `remove` cleans up, or `halt` if it was being resumed; nothing of it goes on by then.
    """
    spawn(group, parts.runtime.expect_start(), "expect a start")
    bundle = await _bundle(parts, record, source, group)
    connection = await connect(await parts.runtime.start(bundle), secret=record.secret, first=True)
    try:
        async with asyncio.timeout(CONFIGURE_S):
            if record.spec.env:  # else sbxd's own
                await SbxdGuest(connection).configure(env=dict(record.spec.env))
    except BaseException:
        await connection.close()
        raise
    return connection


async def _bundle(parts: Parts, record: Record, source: TreeId | None, group: asyncio.TaskGroup) -> Bundle:
    spec, ids = record.spec, _ids(record)
    async with asyncio.TaskGroup() as both:
        # Their threads go on when we are cancelled: wait for them, or removing would run beside making.
        if record.stage is Stage.RESUMING:
            making = parts.layers.resume(spec.id, record.template_root, spec.limits, ids)
        else:
            making = parts.layers.create(spec.id, record.template_root, spec.limits, ids, source)
        layers = both.create_task(through(group, making))
        netns = both.create_task(through(group, parts.network.attach(spec.id, spec.network_mode)))
    return Bundle(
        sandbox_id=spec.id,
        directory=parts.bundles / spec.id,
        rootfs=layers.result().root,
        workspace=layers.result().workspace,
        sbxd=parts.sbxd,
        netns=netns.result(),
        resolv_conf=await parts.network.resolv_conf(spec.network_mode),
        hostname=spec.hostname,
        limits=spec.limits,
        id_range=ids,
    )


def _ids(record: Record) -> IdRange | None:
    return None if record.id_base is None else IdRange(record.id_base)


async def reconnect(parts: Parts, record: Record) -> Connection:
    """A new way into a sandbox that runs, after its layers know of it (again)."""
    await parts.layers.mount(record.id, record.template_root, record.spec.limits, _ids(record))
    return await connect(await parts.runtime.bridge(record.id), secret=record.secret, first=False)


async def release(parts: Parts, sandbox_id: SandboxId) -> None:
    """Free what a sandbox computes with; its files stay. What fails is logged: `remove` will try it again."""
    for step in (parts.runtime.delete, parts.network.detach, parts.layers.unmount):
        try:
            await step(sandbox_id)
        except (SkerryError, OSError) as error:
            log.error("could not release a part of a sandbox", sandbox_id=sandbox_id, step=step, error=str(error))


async def halt(parts: Parts, sandbox_id: SandboxId) -> None:
    """Free all of a sandbox but its workspace. Raises what the parts raise; to be repeated until it succeeds."""
    await parts.runtime.delete(sandbox_id)
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.network.detach(sandbox_id))
        group.create_task(parts.layers.stop(sandbox_id))
        group.create_task(asyncio.to_thread(shutil.rmtree, parts.bundles / sandbox_id, True))


async def remove(parts: Parts, sandbox_id: SandboxId) -> None:
    """Free all of a sandbox, its files too. Raises what the parts raise; to be repeated until it succeeds."""
    await parts.runtime.delete(sandbox_id)
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.network.detach(sandbox_id))
        group.create_task(parts.layers.destroy(sandbox_id))
        group.create_task(asyncio.to_thread(shutil.rmtree, parts.bundles / sandbox_id, True))


async def leftovers(parts: Parts) -> tuple[set[SandboxId], set[SandboxId]]:
    """What the parts hold anything of: (all, those with files)."""
    files = await parts.layers.list()
    bundles = {SandboxId(one.owner) for one in entries(LeakKind.BUNDLE, parts.bundles) if is_id(one.owner, "sbx")}
    return files | bundles | await parts.runtime.list() | await parts.network.list(), files


async def try_removing(sandbox_id: SandboxId, removing: Coroutine[Any, Any, None]) -> None:
    """Await `removing`; what it raises is logged, since somebody comes back to it."""
    try:
        await removing
        log.warning("removed what was left of a sandbox", sandbox_id=sandbox_id)
    except (SkerryError, OSError, ExceptionGroup) as error:
        log.error("a sandbox could not be removed; trying again later", sandbox_id=sandbox_id, error=str(error))
