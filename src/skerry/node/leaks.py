"""What the parts of a node hold and no record of it wants: found, and told. Removes stat caches alone.

A trace of a sandbox that is being made or removed is none: whoever works on it holds it.
"""

import time
from collections.abc import Mapping

from skerry.model.ids import SandboxId
from skerry.model.leak import Leak, LeakKind
from skerry.node import quota
from skerry.node.parts import Parts
from skerry.node.supervisor import Supervisor
from skerry.node.traces import Trace, entries

GRACE_S = 120.0
_SOON = "the node removes it within two minutes; if it stays, its log says why"
_FATES = {
    LeakKind.NFT_RULES: "somebody changed them: the node puts its own back at once; if it does not, its log says why",
    LeakKind.QUOTA_GROUP: "it limits nobody: btrfs qgroup destroy {name}",
    LeakKind.HALF_TREE: "the node removes it when it starts: restart the server",
    LeakKind.STAT_CACHE: "the node forgets it within an hour",
}


async def find(parts: Parts, supervisor: Supervisor) -> list[Leak]:
    """All of it. What is younger than GRACE_S is `waiting`."""
    before = await _wanted(parts, supervisor)
    traces = await _traces(parts)
    wanted = before | await _wanted(parts, supervisor)
    strays = [trace for trace in traces if trace.owner not in wanted]
    owners = sorted({SandboxId(one.owner) for one in strays if one.kind is LeakKind.SUBVOLUME})
    sizes: Mapping[SandboxId, int] = await parts.layers.charged_bytes(owners) if owners else {}
    return [_leak(one, sizes.get(SandboxId(one.owner))) for one in strays]


async def forget_stray_caches(parts: Parts, supervisor: Supervisor, only: str | None = None) -> None:
    """Remember no tree any more that is gone (`only`: if it is this): each such file is as large as its tree has names.

    What is being archived or fetched is not gone, nor is the source of a tree that is held.
    """
    caches = [trace for trace in await _caches(parts) if only in (None, trace.owner)]
    if not caches or parts.archiver is None:
        return
    wanted = await _wanted(parts, supervisor)
    for trace in caches:
        if trace.owner not in wanted:
            await parts.archiver.forget(trace.owner)


async def _wanted(parts: Parts, supervisor: Supervisor) -> set[str]:
    """Names of sandboxes, trees, lines of trees, and quota groups that are there for something."""
    named: set[str] = {*supervisor.known, *supervisor.works.trees, *await parts.trees.lineages()}
    return named | {str(quota.group_of(one)) for one in named}


async def _traces(parts: Parts) -> list[Trace]:
    found = [Trace(LeakKind.CONTAINER, one, one) for one in await parts.runtime.list()]
    found += [*await parts.network.traces(), *await parts.layers.traces(), *await parts.trees.traces()]
    return [*found, *await _caches(parts), *entries(LeakKind.BUNDLE, parts.bundles)]


async def _caches(parts: Parts) -> list[Trace]:
    if parts.archiver is None:
        return []
    remembered = await parts.archiver.remembered()
    return [
        Trace(LeakKind.STAT_CACHE, one.key, one.key, one.modified_at.timestamp(), one.size_bytes) for one in remembered
    ]


def _leak(trace: Trace, size_bytes: int | None) -> Leak:
    fate = _FATES.get(trace.kind, _SOON).format(name=trace.name)
    size = trace.size_bytes if trace.size_bytes is not None else size_bytes
    return Leak(trace.kind, trace.name, fate, size, waiting=_is_young(trace))


def _is_young(trace: Trace) -> bool:
    return trace.since is not None and time.time() - trace.since < GRACE_S
