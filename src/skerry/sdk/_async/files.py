"""Files in one sandbox. Paths are absolute, or relative to /workspace; a symlink never leads out of the sandbox."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime

from skerry.model.errors import GuestError, NotFound
from skerry.sdk._async.clock import sleep
from skerry.sdk._async.http import AsyncHttp, segment
from skerry.sdk._async.trees import TRANSFER_S, AsyncTrees
from skerry.sdk._async.watching import watch
from skerry.sdk.asides import to_thread
from skerry.sdk.backoff import delay_s
from skerry.sdk.changes import FileChange
from skerry.sdk.errors import Unreachable
from skerry.sdk.local_files import LocalPath, Part, Source
from skerry.sdk.packing import Contents, Exclude
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.sdk.transfers import Progress, Transfer
from skerry.sdk.unpacking import MAX_BYTES, MAX_ENTRIES
from skerry.sdk.walking import exact_path, matches
from skerry.wire.files import FileEntry, FileList, MakeDirectory, MoveFile
from skerry.wire.trees import TouchFile

Entries = list[FileEntry]  # where a method named `list` hides the type


class AsyncFiles:
    """`sandbox.files`. Every method may raise NotFound and GuestError (`permission`, `no_space`, …)."""

    def __init__(self, http: AsyncHttp, sandbox_id: str) -> None:
        self._http = http
        self._base = f"/v1/sandboxes/{segment(sandbox_id)}/files"
        self._trees = AsyncTrees(http, self._base)

    async def read(self, path: str) -> bytes:
        """A whole file. For large ones there is `read_stream`."""
        attempt = 0
        while True:
            parts: list[bytes] = []
            try:
                async with self.read_stream(path) as chunks:
                    async for chunk in chunks:
                        parts.append(chunk)
                return b"".join(parts)
            except Unreachable:
                if attempt >= self._http.retries:
                    raise
            await sleep(delay_s(attempt))
            attempt += 1

    async def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Several small files, by the paths as given. Raises NotFound for the first that is missing."""
        return {path: await self.read(path) for path in paths}

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
        return answer_of(FileEntry, answer)

    async def write_stream(self, path: str, chunks: AsyncIterable[bytes], *, mode: str | None = None) -> FileEntry:
        """As `write`, from an iterable of bytes of any size. An iterable that raises leaves the old file as it was."""
        answer = await self._http.put(
            f"{self._base}/raw",
            params={"path": path, "mode": mode},
            content=lambda: aiter(chunks),
            timeout_s=TRANSFER_S,
            again=False,
        )
        return answer_of(FileEntry, answer)

    async def list(self, path: str = "/workspace") -> list[FileEntry]:
        """The entries of a directory, unsorted."""
        answer = await self._http.call("GET", f"{self._base}/list", params={"path": path})
        return answer_of(FileList, answer).data

    async def stat(self, path: str) -> FileEntry:
        """One entry."""
        answer = await self._http.call("GET", f"{self._base}/stat", params={"path": path})
        return answer_of(FileEntry, answer)

    async def walk(self, path: str = "/workspace") -> AsyncGenerator[FileEntry]:
        """All entries below a directory, each directory before what is in it. Symlinks are not followed.

        `path` of each can be given to the other methods, also where it is not UTF-8. A directory that goes away
        meanwhile is passed over.
        """
        left = [path]
        while left:
            directory = left.pop()
            try:
                found = await self.list(directory)
            except NotFound:
                if directory == path:
                    raise
                continue
            below: list[str] = []
            for entry in sorted(found, key=lambda entry: entry.name):
                exact = entry.model_copy(update={"path": exact_path(directory, entry)})
                yield exact
                if entry.type == "dir":
                    below.append(exact.path)
            left += reversed(below)

    async def find(self, pattern: str, path: str = "/workspace") -> Entries:
        """What lies below a directory and matches: a name (`*.py`), or a path below it (`src/*.py`, `**/test_*.py`)."""
        async with aclosing(self.walk(path)) as entries:
            return [entry async for entry in entries if matches(pattern, path, entry.path)]

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
        answer = await self._http.call("POST", f"{self._base}/mkdir", body=body_of(request), again=parents)
        return answer_of(FileEntry, answer)

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileEntry:
        """Rename. A file or symlink whose target lies on another file system (/tmp, say) is copied, all or nothing.

        Raises:
            GuestError: `cross_device`: a directory between file systems, which a command inside has to copy. `busy`: a
                file between file systems that is written to meanwhile.
        """
        request = request_of(MoveFile, source=source, target=target, overwrite=overwrite)
        answer = await self._http.call("POST", f"{self._base}/move", body=body_of(request), timeout_s=TRANSFER_S)
        return answer_of(FileEntry, answer)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a symlink itself, an empty directory, or with `recursive` a tree."""
        await self._http.call(
            "DELETE", self._base, params={"path": path, "recursive": recursive or None}, timeout_s=TRANSFER_S
        )

    async def touch(
        self, path: str, *, modified_at: datetime | None = None, mode: str | None = None, create: bool = True
    ) -> FileEntry:
        """Set a file's time (None: now), and its mode if given. Where nothing is, an empty file is made.

        Raises:
            NotFound: Nothing is there, and `create` is False.
        """
        request = request_of(TouchFile, path=path, modified_at=modified_at, mode=mode, create=create)
        answer = await self._http.call("POST", f"{self._base}/touch", body=body_of(request), again=True)
        return answer_of(FileEntry, answer)

    async def write_many(self, files: Contents, *, mode: str = "0644") -> Transfer:
        """Write many files in one call: a mapping, or pairs, of paths and contents. Parents are made.

        Each file is replaced whole, but they are not replaced together. Safe to call twice.

        Raises:
            Invalid: A path is empty, ends in `/` or holds `..`; nothing was written.
            GuestError: `skipped`: some were not written; the message says which and why. The others are there.
        """
        told = await self._trees.write(files, mode)
        if told.skipped_count:
            why = "; ".join(f"{one.path}: {one.reason}" for one in told.skipped[:5])
            raise GuestError("skipped", f"{told.skipped_count} of the files were not written: {why}")
        return Transfer(told.count, told.size_bytes)

    async def upload(
        self, local: LocalPath, remote: str, *, mode: str | None = None, progress: Progress | None = None
    ) -> FileEntry:
        """A file of this machine to a path inside, all or nothing, with its mode unless another is given."""
        source = Source(local)

        async def content() -> AsyncIterator[bytes]:
            pieces, done = source.pieces(), 0
            while (piece := await to_thread(next, pieces, None)) is not None:
                yield piece
                done += len(piece)
                if progress is not None:
                    progress(done, source.size_bytes)

        params = {"path": remote, "mode": mode or source.mode}
        answer = await self._http.put(f"{self._base}/raw", params=params, content=content, timeout_s=TRANSFER_S)
        return answer_of(FileEntry, answer)

    async def download(self, remote: str, local: LocalPath, *, progress: Progress | None = None) -> int:
        """A file inside to a path on this machine; its size in bytes. A download that breaks off leaves what was there.

        Raises:
            Invalid: `local` is a directory, or another thing that is no file.
        """
        total = (await self.stat(remote)).size_bytes
        part = await to_thread(Part, local)
        try:
            async with self.read_stream(remote) as chunks:
                async for chunk in chunks:
                    await to_thread(part.write, chunk)
                    if progress is not None:
                        progress(part.size_bytes, total)
            await to_thread(part.keep)
        finally:
            part.close()
        return part.size_bytes

    async def upload_dir(
        self,
        local: LocalPath,
        remote: str = "/workspace",
        *,
        exclude: Exclude = (),
        progress: Progress | None = None,
    ) -> Transfer:
        """What lies in a directory of this machine, into one inside, which is made. Nothing there is removed.

        Modes, times, empty directories and symlinks (as they are) come along; set-id bits and owners do not. Sockets,
        FIFOs, devices and what cannot be read are left out, and told in the result.

        Args:
            exclude: Patterns of names or of paths below `local`, such as `[".git", "*.pyc", "build/out"]`, or a
                function of that path.
            progress: Called with the bytes read, and the bytes of all.

        Raises:
            NotFound, Invalid: `local` is no directory.
            GuestError: `quota`, `no_space`, `limit`: what came whole until then is there.
        """
        return await self._trees.upload(local, remote, exclude, progress)

    async def download_dir(
        self,
        remote: str,
        local: LocalPath,
        *,
        progress: Progress | None = None,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
    ) -> Transfer:
        """What lies in a directory inside, into one of this machine, which is made. Nothing there is removed.

        Whatever the sandbox sends, nothing is written outside `local` or through a symlink in it. Left out, and told in
        the result: symlinks to absolute paths or to the outside, devices, FIFOs, sockets, names that cannot be. Files
        are whole or not there; set-id bits are dropped, as is the right of others to write.

        Raises:
            Invalid: `local` is no directory.
            LimitExceeded: There are more than `max_entries`, or more than `max_bytes` together.
            Unreachable, ProtocolError: It broke off; what came whole is there.
            OSError: This machine's disk failed.
        """
        return await self._trees.download(remote, local, progress, max_entries=max_entries, max_bytes=max_bytes)

    def watch(
        self, path: str = "/workspace", *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        """Changes in a directory, from the moment that the context is entered: go through what it gives.

        Raises:
            SandboxGone: The sandbox has ended.
            Unreachable: The connection broke; changes since the last one are not known.
        """
        return watch(self._http, self._base, path, recursive=recursive)
