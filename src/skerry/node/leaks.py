"""What the parts of a node hold and no record of it wants: found, and told. Removes nothing.

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
    LeakKind.STAT_CACHE: "the node forgets it once no archive is being made or fetched",
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


async def _wanted(parts: Parts, supervisor: Supervisor) -> set[str]:
    """Names of sandboxes, trees and quota groups that are there for something."""
    held = {tree.id for tree in await parts.trees.held([])}
    named: set[str] = {*supervisor.known, *supervisor.works.trees, *held}
    return named | {str(quota.group_of(one)) for one in named}


async def _traces(parts: Parts) -> list[Trace]:
    found = [Trace(LeakKind.CONTAINER, one, one) for one in await parts.runtime.list()]
    found += [*await parts.network.traces(), *await parts.layers.traces(), *await parts.trees.traces()]
    if parts.archiver is not None:
        remembered = set(await parts.archiver.remembered()) - set(await parts.trees.lineages())
        found += [Trace(LeakKind.STAT_CACHE, one, one) for one in sorted(remembered)]
    return [*found, *entries(LeakKind.BUNDLE, parts.bundles)]


def _leak(trace: Trace, size_bytes: int | None) -> Leak:
    fate = _FATES.get(trace.kind, _SOON).format(name=trace.name)
    size = trace.size_bytes if trace.size_bytes is not None else size_bytes
    return Leak(trace.kind, trace.name, fate, size, waiting=_is_young(trace))


def _is_young(trace: Trace) -> bool:
    return trace.since is not None and time.time() - trace.since < GRACE_S
