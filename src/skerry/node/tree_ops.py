"""The ops about trees: captured, archived, fetched, dropped, listed, swept. A part of the table of `ops`."""

from collections.abc import Callable

from skerry.guest import shapes
from skerry.guest.shapes import Json
from skerry.model.capture import Moved
from skerry.model.errors import Invalid
from skerry.model.ids import ArchiveId, SandboxId, TreeId, is_id
from skerry.node.rpc import Call, Handler
from skerry.node.tree_keeper import Tell, TreeKeeper


class TreeOps:
    """`keeper` raises Unavailable while the node is not ready."""

    def __init__(self, keeper: Callable[[], TreeKeeper]) -> None:
        self._keeper = keeper

    def table(self) -> dict[str, Handler]:
        return {
            "capture": self.capture,
            "archive": self.archive,
            "fetch": self.fetch,
            "drop": self.drop,
            "trees": self.trees,
            "sweep": self.sweep,
        }

    async def capture(self, call: Call) -> None:
        await self._keeper().capture(SandboxId(call.ask["sandbox"]), _tree(call))

    async def archive(self, call: Call) -> None:
        """Events say how far it is; the last one has what was made."""
        await self._keeper().archive(_tree(call), shapes.vault_from(call.ask["vault"]), _telling(call))

    async def fetch(self, call: Call) -> None:
        archive, vault = shapes.archive_from(call.ask["archive"]), shapes.vault_from(call.ask["vault"])
        await self._keeper().fetch(_tree(call), archive, vault, _telling(call))

    async def drop(self, call: Call) -> None:
        await self._keeper().drop(_tree(call))

    async def trees(self, call: Call) -> None:
        for held in await self._keeper().trees():
            await call.event(shapes.held_to(held))

    async def sweep(self, call: Call) -> Json:
        """DATA until EOF: the ids of the archives to keep, a line each; as many as there are."""
        keeper, vault = self._keeper(), shapes.vault_from(call.ask["vault"])
        lines = bytearray()
        while data := await call.receive():
            lines += data
        keep = [ArchiveId(line) for line in lines.decode().splitlines()]
        # What is not understood here would be removed from the vault.
        if not all(is_id(one, "arc") for one in keep) or len(keep) != call.ask["count"]:
            raise Invalid("The archives to keep came through damaged; nothing was swept.", field="keep")
        swept = await keeper.sweep(vault, keep, older_than_s=call.ask["older_than_s"], dry=call.ask["dry"])
        return shapes.swept_to(swept)


def _tree(call: Call) -> TreeId:
    return TreeId(call.ask["tree"])


def _telling(call: Call) -> Tell:
    async def tell(moved: Moved) -> None:
        await call.event(shapes.moved_to(moved))

    return tell
