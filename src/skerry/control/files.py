"""Files of a running sandbox. Paths are resolved inside, by sbxd: nothing here looks at the host's files."""

import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from skerry.control import idleness, sandboxes
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.errors import Invalid
from skerry.model.files import FileInfo
from skerry.model.ids import AccountId, SandboxId
from skerry.seams import FileReader, Guest

WORKSPACE = "/workspace"
_LONGEST_PATH = 4096
LIST_LIMIT = 100_000


def absolute(path: str, field: str = "path") -> str:
    """A path as the guest takes it: a relative one is under /workspace.

    Raises:
        Invalid: Empty, too long, or with a NUL byte.
    """
    if not path or "\0" in path:
        raise Invalid(f"'{field}' must not be empty or hold a NUL byte.", field=field)
    if len(path.encode("utf-8", "surrogateescape")) > _LONGEST_PATH:
        raise Invalid(f"'{field}' is longer than {_LONGEST_PATH} bytes.", field=field)
    return path if path.startswith("/") else posixpath.join(WORKSPACE, path)


async def open_guest(deps: Deps, account_id: AccountId, sandbox_id: str, *, wake: bool = True) -> Guest:
    """The inside of a sandbox of this account, for work in it: a stopped one is resumed. Without `wake`: for a look.

    Raises:
        As `sandboxes.awake`, and without `wake` as `sandboxes.get_running`.
    """
    find = sandboxes.awake if wake else sandboxes.get_running
    return deps.provider.guest((await find(deps, account_id, sandbox_id)).id)


@asynccontextmanager
async def guest_in_use(deps: Deps, account_id: AccountId, sandbox_id: str) -> AsyncGenerator[Guest]:
    """As `open_guest`, for what lasts: inside, the sandbox is in use."""
    guest = await open_guest(deps, account_id, sandbox_id)
    async with idleness.using(deps, SandboxId(sandbox_id)):
        yield guest


def read(guest: Guest, path: str, offset: int = 0, length: int = -1) -> AbstractAsyncContextManager[FileReader]:
    return guest.read(absolute(path), offset, length)


async def read_small(guest: Guest, path: str, most: int) -> tuple[FileInfo, bytes]:
    """A whole file in memory.

    Raises:
        Invalid: It is larger than `most` bytes, code `too_large`.
    """
    content = bytearray()
    async with read(guest, path, 0, most + 1) as reader:
        async for chunk in reader:
            content += chunk
            if len(content) > most:
                raise Invalid(
                    f"'{path}' is larger than {most} bytes. Get it in pieces or as a stream with GET …/files/raw.",
                    code="too_large",
                    field="path",
                )
        return reader.info, bytes(content)


async def write(guest: Guest, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None) -> FileInfo:
    """Replace a file, all or nothing. A stream that breaks leaves what was there before."""
    return await guest.write(absolute(path), chunks, mode=mode)


async def list_directory(guest: Guest, path: str) -> Sequence[FileInfo]:
    """The entries of a directory, sorted by name.

    Raises:
        Invalid: There are more than LIST_LIMIT; a hostile directory must not fill the server's memory.
    """
    found: list[FileInfo] = []
    async with closing(guest.list(absolute(path))) as entries:
        async for entry in entries:
            found.append(entry)
            if len(found) > LIST_LIMIT:
                raise Invalid(f"'{path}' has more than {LIST_LIMIT} entries. List it with a command.", field="path")
    return sorted(found, key=lambda entry: entry.name)


async def stat(guest: Guest, path: str, *, follow: bool) -> FileInfo:
    return await guest.stat(absolute(path), follow=follow)


async def touch(guest: Guest, path: str, mtime_ns: int | None, *, mode: int | None, create: bool) -> FileInfo:
    """Set a file's time to `mtime_ns`, or to the present; with `create` make an empty file where nothing is."""
    return await guest.set_attributes(absolute(path), mode=mode, mtime_ns=mtime_ns, now=mtime_ns is None, create=create)


async def mkdir(guest: Guest, path: str, *, parents: bool, mode: int) -> FileInfo:
    return await guest.mkdir(absolute(path), parents=parents, mode=mode)


async def move(guest: Guest, source: str, target: str, *, overwrite: bool) -> FileInfo:
    return await guest.move(absolute(source, "source"), absolute(target, "target"), overwrite=overwrite)


async def remove(guest: Guest, path: str, *, recursive: bool) -> int:
    return await guest.remove(absolute(path), recursive=recursive)
