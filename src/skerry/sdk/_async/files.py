"""Files in one sandbox. Paths are absolute, or relative to /workspace; a symlink never leads out of the sandbox."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager

from skerry.model.errors import NotFound
from skerry.sdk._async.http import AsyncHttp
from skerry.sdk.errors import Unreachable
from skerry.sdk.requests import body_of, request_of
from skerry.wire.files import FileEntry, FileList, MakeDirectory, MoveFile

TRANSFER_S = 3600.0


class AsyncFiles:
    """`sandbox.files`. Every method may raise NotFound and GuestError (`permission`, `no_space`, …)."""

    def __init__(self, http: AsyncHttp, sandbox_id: str) -> None:
        self._http = http
        self._base = f"/v1/sandboxes/{sandbox_id}/files"

    async def read(self, path: str) -> bytes:
        """A whole file. For large ones there is `read_stream`."""
        parts: list[bytes] = []
        async with self.read_stream(path) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
        return b"".join(parts)

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """A whole file as text. Raises UnicodeDecodeError where it is not in `encoding`."""
        return (await self.read(path)).decode(encoding)

    @asynccontextmanager
    async def read_stream(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """A file's bytes as they arrive, `length` of them (None: to the end) from `offset`.

        While they come, Conflict and SandboxGone say that the sandbox has ended, Unreachable that the server has.
        """
        headers: dict[str, str] = {}
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            headers["Range"] = f"bytes={offset}-{last}"
        async with self._http.stream(f"{self._base}/raw", params={"path": path}, headers=headers) as chunks:
            yield self._explained(chunks)

    async def _explained(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes. An answer that has begun can only break off: why it did, the server is asked afterwards."""
        try:
            async for chunk in chunks:
                yield chunk
        except Unreachable:
            await self.stat("/")
            raise

    async def write(self, path: str, content: bytes | str, *, mode: str | None = None) -> FileEntry:
        """Replace a file, all or nothing; parents are made. `mode` is octal text such as "0755". Safe to call twice."""
        data = content.encode() if isinstance(content, str) else content
        answer = await self._http.put(f"{self._base}/raw", params={"path": path, "mode": mode}, content=data)
        return FileEntry.model_validate_json(answer)

    async def write_stream(self, path: str, chunks: AsyncIterable[bytes], *, mode: str | None = None) -> FileEntry:
        """As `write`, from an iterable of bytes of any size. An iterable that raises leaves the old file as it was."""
        answer = await self._http.put(
            f"{self._base}/raw", params={"path": path, "mode": mode}, content=aiter(chunks), timeout_s=TRANSFER_S
        )
        return FileEntry.model_validate_json(answer)

    async def list(self, path: str = "/workspace") -> list[FileEntry]:
        """The entries of a directory, unsorted."""
        answer = await self._http.call("GET", f"{self._base}/list", params={"path": path})
        return FileList.model_validate_json(answer).data

    async def stat(self, path: str) -> FileEntry:
        """One entry."""
        answer = await self._http.call("GET", f"{self._base}/stat", params={"path": path})
        return FileEntry.model_validate_json(answer)

    async def exists(self, path: str) -> bool:
        """Whether something is there."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def mkdir(self, path: str, *, parents: bool = True, mode: str = "0755") -> FileEntry:
        """Make a directory; with `parents` one that exists is a success."""
        request = request_of(MakeDirectory, path=path, parents=parents, mode=mode)
        return FileEntry.model_validate_json(
            await self._http.call("POST", f"{self._base}/mkdir", body=body_of(request))
        )

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileEntry:
        """Rename. A file or symlink whose target lies on another file system (/tmp, say) is copied, all or nothing.

        Raises:
            GuestError: `cross_device`: a directory between file systems, which a command inside has to copy. `busy`: a
                file between file systems that is written to meanwhile.
        """
        request = request_of(MoveFile, source=source, target=target, overwrite=overwrite)
        answer = await self._http.call("POST", f"{self._base}/move", body=body_of(request), timeout_s=TRANSFER_S)
        return FileEntry.model_validate_json(answer)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a symlink itself, an empty directory, or with `recursive` a tree."""
        await self._http.call(
            "DELETE", self._base, params={"path": path, "recursive": recursive or None}, timeout_s=TRANSFER_S
        )
