"""Archives for a node: a worker process a job, two at once, ended when nobody waits for it any more.

Holds no state that matters: what a broken-off job sent is found by the next one, or swept.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from skerry.blobs.job import Job, decode_answer, encode_job
from skerry.blobs.stat_cache import cache_path, tidy
from skerry.blobs.store import Place
from skerry.model.capture import Archive, Moved, Swept, Vault
from skerry.model.errors import Invalid, Unavailable
from skerry.model.ids import is_id, new_archive_id

_AT_ONCE = 2
_END_S = 10.0
_LINE_BYTES = 1 << 20
_CACHE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
# What a worker's environment has: no setting of the instance, since some of those are secrets.
_ENVIRONMENT = (
    "PATH",
    "PYTHONPATH",
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    # The host's role, where no keys are given.
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
)


@dataclass(slots=True)
class _Users:
    """Who works on a vault: any number of archives, or one sweep."""

    changed: asyncio.Condition
    archives: int = 0
    sweeping: bool = False
    waiting: int = 0

    @property
    def idle(self) -> bool:
        return not (self.archives or self.sweeping or self.waiting)


class Archiver:
    """Archives trees, fetches them back, and sweeps vaults, all in one object store. For one event loop.

    `cache_dir` is this host's memory of what the vaults have. Losing it costs time and nothing else.
    """

    def __init__(self, place: Place, cache_dir: Path, *, at_once: int = _AT_ONCE) -> None:
        self._place = place
        self._cache_dir = cache_dir
        self._slots = asyncio.Semaphore(at_once)
        self._users: dict[str, _Users] = {}

    async def archive(
        self, tree: Path, vault: Vault, *, captured_at: datetime, cache_name: str
    ) -> AsyncGenerator[Moved]:
        """Put a tree that does not change into the vault; the last item has what was made.

        `captured_at` is when it ceased to change, on this host's clock. `cache_name` is remembered with the tree:
        the next archive under that name reads only what changed.

        Raises:
            Refused: The tree is beyond a limit; the message names it.
            Unavailable: The object store cannot be used now, or the tree cannot be read.
        """
        job = self._job(
            "archive",
            vault,
            tree=str(tree),
            archive_id=new_archive_id(),
            cache_name=_checked(cache_name),
            captured_at_ns=_nanoseconds(captured_at),
        )
        async with self._using(vault, sweeping=False), self._slots, _running(job) as answers:
            async for answer in answers:
                assert isinstance(answer, Moved)
                yield answer

    async def fetch(self, into: Path, archive: Archive, vault: Vault, *, cache_name: str) -> AsyncGenerator[Moved]:
        """Fill the empty directory `into`; what a failed or broken-off fetch leaves there is to be thrown away.

        Raises:
            NotFound: The vault has no such archive (`archive_missing`).
            Refused: What it has is damaged; the message says where.
            Unavailable: The object store cannot be used now, or the files not be written.
            TooBusy: No room.
        """
        if not is_id(archive.id, "arc"):
            raise Invalid(f"{archive.id!r} is not the id of an archive.")
        job = self._job("fetch", vault, tree=str(into), archive_id=archive.id, cache_name=_checked(cache_name))
        async with self._slots, _running(job) as answers:
            async for answer in answers:
                assert isinstance(answer, Moved)
                yield answer

    async def sweep(self, vault: Vault, keep: Collection[str], *, older_than_s: float, dry: bool = False) -> Swept:
        """Remove what none of the archives in `keep` needs and what is older. Waits for archives of the vault.

        Raises:
            Refused: An archive in `keep` is damaged; nothing was removed.
            Unavailable: The object store cannot be used now.
        """
        job = self._job("sweep", vault, keep=tuple(keep), older_than_s=older_than_s, dry=dry)
        async with self._using(vault, sweeping=True), self._slots, _running(job) as answers:
            async for answer in answers:
                if isinstance(answer, Swept):
                    return answer
        raise Unavailable("The sweep ended without a result; the node's log may say why.")

    async def forget(self, cache_name: str) -> None:
        """Remember a tree no more. Unknown: nothing happens."""
        path = cache_path(self._cache_dir, _checked(cache_name))
        with suppress(FileNotFoundError):
            await asyncio.to_thread(path.unlink)

    async def remembered(self) -> set[str]:
        """The names under which trees are remembered."""
        directory = cache_path(self._cache_dir, "x").parent

        def look() -> set[str]:
            tidy(directory)
            return {entry.name for entry in directory.iterdir() if _CACHE_NAME.fullmatch(entry.name)}

        try:
            return await asyncio.to_thread(look)
        except FileNotFoundError:
            return set()

    def _job(self, verb: Any, vault: Vault, **more: Any) -> Job:
        if not is_id(vault.id, "vlt"):
            raise Invalid(f"{vault.id!r} is not the id of a vault.")
        return Job(
            verb=verb,
            place=self._place,
            vault_id=vault.id,
            vault_key=vault.key.hex(),
            cache_dir=str(self._cache_dir),
            parent_pid=os.getpid(),
            **more,
        )

    @asynccontextmanager
    async def _using(self, vault: Vault, *, sweeping: bool) -> AsyncGenerator[None]:
        users = self._users.setdefault(vault.id, _Users(asyncio.Condition()))
        async with users.changed:
            users.waiting += 1
            try:
                await users.changed.wait_for(lambda: not (users.sweeping or (sweeping and users.archives)))
            finally:
                users.waiting -= 1
            users.sweeping = sweeping
            users.archives += not sweeping
        try:
            yield
        finally:
            # Nothing is awaited: whoever was cancelled lets go for certain. Waiters look again in a turn of their own.
            users.sweeping = False if sweeping else users.sweeping
            users.archives -= not sweeping
            await asyncio.shield(_notify(users.changed))
            if users.idle:
                self._users.pop(vault.id, None)


async def _notify(changed: asyncio.Condition) -> None:
    async with changed:
        changed.notify_all()


@asynccontextmanager
async def _running(job: Job) -> AsyncGenerator[AsyncIterator[Moved | Swept]]:
    """The answers of a worker that does `job`. It does not outlive the block."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        # Names of files are bytes: whatever the locale, Python's strings have to carry all of them.
        *(sys.executable, "-X", "utf8", "-m", "skerry.blobs.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        limit=_LINE_BYTES,
    )
    try:
        yield _answers(process, job)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.shield(_reaped(process, Path(job.cache_dir)))


async def _answers(process: asyncio.subprocess.Process, job: Job) -> AsyncIterator[Moved | Swept]:
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it died: the end of its answers says so
        process.stdin.write(encode_job(job))
        await process.stdin.drain()
        process.stdin.close()
    async for line in process.stdout:
        answer = decode_answer(line)
        if answer is None:
            return
        yield answer
    raise Unavailable(f"The worker that should {job.verb} died; the node's log may say why. It is tried again.")


async def _reaped(process: asyncio.subprocess.Process, cache_dir: Path) -> None:
    """Return when a killed worker is gone, with what it had begun to remember; or after a while, where a disk that does
    not answer holds it.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            if await process.wait():
                await asyncio.to_thread(tidy, cache_path(cache_dir, "x").parent)


def _checked(cache_name: str) -> str:
    if _CACHE_NAME.fullmatch(cache_name) is None:
        raise Invalid(f"{cache_name[:80]!a} is not a name for a cache.")
    return cache_name


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
