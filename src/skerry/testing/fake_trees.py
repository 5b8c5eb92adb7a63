"""Trees of a `FakeProvider`, and an object store for them: archives are copies in memory."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from skerry.model.capture import Archive, Held, Swept, Vault
from skerry.model.errors import NotFound, Unavailable
from skerry.model.ids import ArchiveId, TreeId, VaultId, new_archive_id
from skerry.testing.fake_files import FakeFiles, Node

WORKSPACE = "/workspace"

Nodes = Mapping[str, Node]


def workspace_of(files: FakeFiles) -> Nodes:
    """What a copy of a workspace holds. The nodes never change, so the copy is one of the tree alone."""
    inside = WORKSPACE + "/"
    return {path: node for path, node in files.nodes.items() if path == WORKSPACE or path.startswith(inside)}


def put_workspace(files: FakeFiles, nodes: Nodes) -> None:
    files.nodes |= nodes


def size_of(nodes: Nodes) -> int:
    return sum(len(node.data or b"") for node in nodes.values())


@dataclass(frozen=True, slots=True)
class FakeTree:
    nodes: Nodes
    created_at: datetime

    def held(self, tree: TreeId) -> Held:
        return Held(tree, self.created_at, size_of(self.nodes))


@dataclass(slots=True)
class FakeStorage:
    """An object store. `down` makes every use Unavailable; `archives` is what it holds, by vault."""

    down: bool = False
    archives: dict[VaultId, dict[ArchiveId, FakeTree]] = field(default_factory=dict[VaultId, dict[ArchiveId, FakeTree]])

    def put(self, vault: Vault, nodes: Nodes, now: datetime) -> Archive:
        held = self._vault(vault)
        made = Archive(new_archive_id(), size_of(nodes), size_of(nodes), len(nodes), 0)
        held[made.id] = FakeTree(nodes, now)
        return made

    def get(self, vault: Vault, archive: Archive) -> Nodes:
        held = self._vault(vault)
        if archive.id not in held:
            raise NotFound(f"The object store has no archive '{archive.id}'.", code="archive_missing")
        return held[archive.id].nodes

    def sweep(self, vault: Vault, keep: Collection[ArchiveId], before: datetime, *, dry: bool) -> Swept:
        held = self._vault(vault)
        unwanted = [each for each, tree in held.items() if each not in keep and tree.created_at <= before]
        freed = sum(size_of(held[each].nodes) for each in unwanted)
        stored = sum(size_of(tree.nodes) for tree in held.values())
        if not dry:
            for each in unwanted:
                del held[each]
        return Swept(stored, len(held), freed, len(unwanted))

    def check(self) -> None:
        if self.down:
            raise Unavailable("The object store does not answer: connection refused.")

    def _vault(self, vault: Vault) -> dict[ArchiveId, FakeTree]:
        self.check()
        return self.archives.setdefault(vault.id, {})
