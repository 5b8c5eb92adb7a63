"""Snapshots: named captures of sandboxes' files and configuration, from which sandboxes are made."""

import builtins
from datetime import datetime

from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import is_id
from skerry.sdk._async.http import AsyncHttp, segment
from skerry.sdk._async.listing import AsyncListing
from skerry.sdk.naming import MOST_LISTED, beginning, several
from skerry.sdk.requests import answer_of
from skerry.wire.base import Page
from skerry.wire.snapshots import SnapshotView


class AsyncSnapshot:
    """One snapshot: `client.create(snapshot_id=snapshot.id)` makes a sandbox from it. It outlives its source.

    `info` is the last answer about it, and so are the properties: `refresh` asks again.
    """

    def __init__(self, http: AsyncHttp, info: SnapshotView) -> None:
        self._http = http
        self.info = info
        self._path = f"/v1/snapshots/{segment(info.id)}"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        """Empty where none was given."""
        return self.info.name

    @property
    def status(self) -> str:
        """`creating`, `ready` (sandboxes can be made from it), `deleting`."""
        return self.info.status

    @property
    def archived(self) -> bool:
        """Whether the object store has it. Until then the server's machine alone does; `info.detail` may say why."""
        return self.info.archived

    @property
    def source_sandbox_id(self) -> str:
        return self.info.source_sandbox_id

    @property
    def size_bytes(self) -> int:
        """Of its files; 0 until they were counted. `info.stored_bytes` is what it took in the object store."""
        return self.info.size_bytes

    @property
    def created_at(self) -> datetime:
        return self.info.created_at

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        where = "" if self.archived else " not stored yet"
        return (
            f"<{type(self).__name__} {self.id}{name} {self.status} {self.info.template}"
            f" {self.size_bytes / 1e6:.1f} MB of {self.source_sandbox_id}{where}>"
        )

    async def refresh(self) -> "AsyncSnapshot":
        """Ask for its state again; itself."""
        self.info = answer_of(SnapshotView, await self._http.call("GET", self._path))
        return self

    async def delete(self) -> None:
        """Delete it. Sandboxes that were made from it stay as they are. Safe to call twice."""
        try:
            await self._http.call("DELETE", self._path)
        except NotFound:
            return


class AsyncSnapshots:
    """`client.snapshots`. A new one is made by `sandbox.snapshot()`."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    def list(
        self, *, name: str | None = None, source_sandbox_id: str | None = None, limit: int | None = None
    ) -> AsyncListing[AsyncSnapshot]:
        """The account's snapshots, newest first: go through them, or have a list by `all()`.

        Args:
            name: Exactly this name.
            source_sandbox_id: Only those of this sandbox, which may be gone.
            limit: How many at most.
        """
        where = {"name": name, "source_sandbox_id": source_sandbox_id}
        return AsyncListing(self._http, "/v1/snapshots", self._read, where, limit)

    async def get(self, snapshot_id: str) -> AsyncSnapshot:
        """A snapshot by its id. Raises NotFound."""
        answer = await self._http.call("GET", f"/v1/snapshots/{segment(snapshot_id)}")
        return AsyncSnapshot(self._http, answer_of(SnapshotView, answer))

    async def delete(self, snapshot_id: str) -> None:
        """Delete one by its id. Sandboxes that were made from it stay as they are. Safe to call twice."""
        try:
            await self._http.call("DELETE", f"/v1/snapshots/{segment(snapshot_id)}")
        except NotFound:
            return

    async def find(self, word: str) -> AsyncSnapshot:
        """The snapshot that a person means: by its id, its name, or the beginning of its id (4 characters or more).

        Raises:
            NotFound: There is none.
            Conflict: There are several; the message lists them.
        """
        if is_id(word, "snap"):
            return await self.get(word)
        found = await self.list(name=word, limit=MOST_LISTED + 1).all() if 0 < len(word) <= 200 else []
        prefix = beginning(word, "snap")
        if not found and prefix is not None:
            found = [one async for one in self.list() if one.id.startswith(prefix)]
        if not found:
            raise NotFound(
                f"No snapshot has the name or id {word[:200]!r}. `skerry snapshot ls` lists yours.", field="snapshot"
            )
        if len(found) > 1:
            raise Conflict(several(word, "snapshots", [(one.id, one.name) for one in found]), field="snapshot")
        return await self.get(found[0].id)

    def _read(self, answer: bytes) -> tuple[builtins.list[AsyncSnapshot], str | None]:
        page = answer_of(Page[SnapshotView], answer)
        return [AsyncSnapshot(self._http, view) for view in page.data], page.next
