"""What a sandbox's files lie on: a root layer over its template, and a workspace, limited together, mounted for it.

On disk every id is canonical (0 is 0); the mounts translate. Nothing here starts a process in a sandbox, and nothing
that a sandbox wrote is ever opened by name.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from skerry.config import Config
from skerry.model.bundle import IdRange
from skerry.model.capability import Probe
from skerry.model.errors import Invalid, NotFound, Refused, TooBusy
from skerry.model.ids import SandboxId, is_id
from skerry.model.sandbox import Limits
from skerry.node import mounts
from skerry.node.idmap import IdMaps
from skerry.node.pool import Pool, close_pool, open_pool
from skerry.node.trees import remove_tree

_MIB = 1 << 20
_THREADS = 8
RESERVE_BYTES = 256 * _MIB  # below this the pool takes no new sandbox: btrfs needs room to delete, too
_HALF_MADE = ".new"
_PARTS = ("layer", "workspace")
_PROBE_IDS = IdRange(1_000_000)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rootfs:
    """Host paths of a mounted sandbox."""

    root: Path
    workspace: Path


class Layers:
    """The layers of one instance. Each verb may be called twice, and after a crash at any step of itself.

    A cancelled call is done to its end all the same; the next one for that sandbox waits for it. What the kernel
    refuses is raised as Refused.
    """

    def __init__(self, config: Config, *, opened: Pool | None = None) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="layers")
        self._last: dict[SandboxId, Future[Any]] = {}
        self._maps = IdMaps()
        self._limits: dict[SandboxId, Limits] = {}
        self._clamped: set[SandboxId] = set()
        self._next_look: dict[SandboxId, float] = {}
        self._pool = opened
        self._layers_must_stand = False  # found out with the first mount

    async def open(self) -> None:
        """Make the pool ready. Mounts of running sandboxes stay as they are.

        Raises:
            Refused: It cannot be mounted.
        """
        self._pool = await self._in_thread(lambda: open_pool(self._config))

    async def close(self) -> None:
        """Unmount every sandbox and the pool. Running sandboxes keep what they have open until they end."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await self._in_thread(lambda: close_pool(pool))
        self._maps.close()

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            raise Refused("The pool is not open.")
        return self._pool

    @property
    def disk_limit(self) -> str:
        """How `Limits.disk_mb` is enforced: "simple-quota", "qgroup", or "none"."""
        return self.pool.trees.disk_limit

    async def create(
        self, sandbox_id: SandboxId, template_root: Path, limits: Limits, ids: IdRange | None = None
    ) -> Rootfs:
        """Make an empty layer and workspace and mount them over the template. An existing sandbox's are kept.

        `ids`: the range that the sandbox's user namespace maps its ids to; None: ids are shown as they are.

        Raises:
            TooBusy: The pool is nearly full.
            Refused: The kernel would not mount it, or disk use cannot be limited here. Nothing is left behind.
        """
        return await self._alone(sandbox_id, lambda: self._create(sandbox_id, template_root, limits, ids))

    async def mount(
        self, sandbox_id: SandboxId, template_root: Path, limits: Limits, ids: IdRange | None = None
    ) -> Rootfs:
        """Mount an existing sandbox's files again (after a reboot) and put its limits in force. Mounted: they stay.

        Raises:
            NotFound: There are none.
            Refused: The kernel would not mount them.
        """
        return await self._alone(sandbox_id, lambda: self._mount(sandbox_id, template_root, limits, ids))

    async def unmount(self, sandbox_id: SandboxId) -> None:
        """Unmount a sandbox's files and keep them. Not mounted, or unknown: success."""
        await self._alone(sandbox_id, lambda: self._unmount(sandbox_id))

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Unmount and remove a sandbox's files. Unknown: success."""
        await self._alone(sandbox_id, lambda: self._destroy(sandbox_id))

    async def usage_bytes(self, sandbox_id: SandboxId) -> int:
        """Bytes that a sandbox's layer and workspace hold. Unknown: 0."""
        paths = [self._home(sandbox_id) / part for part in _PARTS]
        return await self._in_thread(lambda: self.pool.trees.usage_bytes(paths, sandbox_id))

    async def charged_bytes(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, int]:
        """Bytes charged to each, as of the file system's last commit (at most half a minute ago).

        Cheap, so empty where nobody counts: without quotas it would take a walk over all files.
        """
        return await self._in_thread(lambda: self.pool.trees.charged_bytes(sandbox_ids))

    async def room(self) -> tuple[int, int]:
        """The bytes of the pool, and those that it can still take."""

        def look() -> tuple[int, int]:
            here = os.statvfs(self.pool.path)
            return here.f_blocks * here.f_frsize, self.pool.free_bytes()

        return await self._in_thread(look)

    async def free_bytes(self) -> int:
        """Bytes that the pool can still take, the disk under a sparse image considered."""
        return await self._in_thread(self.pool.free_bytes)

    async def enforce_inodes(self) -> set[SandboxId]:
        """Hold every sandbox to its `Limits.inodes`; those that are at it. To be called every few seconds.

        btrfs counts bytes, not files, so this looks at what is there: who has too many gets no more space (EDQUOT)
        until it has removed some. Between two calls more files may be made; their metadata counts as disk space.
        """
        for sandbox_id, limits in list(self._limits.items()):
            await self._alone(sandbox_id, lambda i=sandbox_id, n=limits: self._enforce_inodes(i, n))
        return set(self._clamped)

    async def probes(self) -> list[Probe]:
        """What this host can do for files, tried. The pool must be open."""
        return [self.pool.probe, await self._in_thread(self._probe_idmap)]

    async def list(self) -> set[SandboxId]:
        """Every sandbox that anything is left of: whole, half-made, half-removed, or only mounted."""
        return await self._in_thread(self._list)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._result(self._threads.submit(work))

    async def _alone(self, sandbox_id: SandboxId, work: Callable[[], T]) -> T:
        """In a thread, in the order of the calls for this sandbox, those that were cancelled included."""
        earlier = self._last.get(sandbox_id)

        def in_turn() -> T:
            if earlier is not None:
                futures.wait([earlier])  # it was submitted before us: it runs, or has run
            return work()

        turn = self._last[sandbox_id] = self._threads.submit(in_turn)
        try:
            return await self._result(turn)
        finally:
            if turn.done() and self._last.get(sandbox_id) is turn:
                del self._last[sandbox_id]

    async def _result(self, future: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(future)
        except OSError as error:
            raise Refused(f"This host's kernel refused: {error}.") from error

    def _home(self, sandbox_id: SandboxId) -> Path:
        if not is_id(sandbox_id, "sbx"):
            raise Invalid(f"Not a sandbox id: {sandbox_id!r}.", field="id")
        return self.pool.sandboxes / sandbox_id

    def _create(self, sandbox_id: SandboxId, template: Path, limits: Limits, ids: IdRange | None) -> Rootfs:
        home = self._home(sandbox_id)
        if home.exists():
            return self._mount(sandbox_id, template, limits, ids)
        self._require_limits()
        self._require_room()
        self._make(sandbox_id, home, limits)
        try:
            return self._mount(sandbox_id, template, limits, ids)
        except Refused:
            self._destroy(sandbox_id)
            raise

    def _require_limits(self) -> None:
        if self.disk_limit == "none" and not self._config.allow_unlimited_disk:
            raise Refused(
                f"Disk limits cannot be enforced here ({self.pool.probe.detail}), so one sandbox could fill the disk. "
                f"{self.pool.probe.remedy} To run without disk limits all the same, set allow_unlimited_disk.",
                code="no_disk_limit",
            )

    def _require_room(self) -> None:
        if self.pool.free_bytes() < RESERVE_BYTES:
            raise self._full()

    def _full(self) -> TooBusy:
        return TooBusy(
            f"The pool {self.pool.path} has {self.pool.free_bytes() // _MIB} MB left, too little for another sandbox. "
            "Destroy sandboxes, free disk space, or raise pool_mb.",
            retry_after_s=30,
            code="disk_full",
        )

    def _make(self, sandbox_id: SandboxId, home: Path, limits: Limits) -> None:
        """All under another name first: what has its own name is whole."""
        unfinished = home.with_name(home.name + _HALF_MADE)
        if unfinished.exists():
            self._remove(sandbox_id, unfinished)
        try:
            unfinished.mkdir(mode=0o700)
            paths = [unfinished / part for part in _PARTS]
            self.pool.trees.make(paths, sandbox_id, limits.disk_mb * _MIB)
            for name in ("upper", "work"):
                (unfinished / "layer" / name).mkdir()
            for shown in (unfinished / "layer/upper", unfinished / "workspace"):
                shown.chmod(0o755)  # whatever the umask is: these are / and /workspace inside
            unfinished.rename(home)
        except OSError as error:
            self._remove(sandbox_id, unfinished)
            if error.errno == errno.ENOSPC:
                raise self._full() from error
            raise Refused(f"The files of {sandbox_id} cannot be made: {error}.") from error

    def _mount(self, sandbox_id: SandboxId, template: Path, limits: Limits, ids: IdRange | None) -> Rootfs:
        home = self._home(sandbox_id)
        if not home.exists():
            raise NotFound(f"The files of {sandbox_id} are not here.")
        if sandbox_id not in self._limits:
            self.pool.trees.limit(sandbox_id, limits.disk_mb * _MIB)
        self._limits[sandbox_id] = limits
        target = self.pool.mounts / sandbox_id
        try:
            return self._mount_at(target, home, template, ids)
        except OSError as error:
            raise Refused(f"The files of {sandbox_id} cannot be mounted: {error}.") from error

    def _mount_at(self, target: Path, home: Path, template: Path, ids: IdRange | None) -> Rootfs:
        rootfs = Rootfs(target / "root", target / "workspace" if ids else home / "workspace")
        for directory in (target, target / "root", target / "workspace"):
            if not directory.exists():
                directory.mkdir()
                directory.chmod(0o711)  # a runtime enters with the sandbox's mapped ids
        with ExitStack() as stack:
            userns = self._maps.open(ids) if ids else None
            if userns is not None:
                stack.callback(os.close, userns)
            if not mounts.is_mount_root(rootfs.root):
                lower = stack.enter_context(mounts.cloned(template, userns))
                layer = stack.enter_context(mounts.cloned(home / "layer", userns))
                self._overlay(lower, layer, target, owner=ids.base if ids else 0)
            if ids and not mounts.is_mount_root(rootfs.workspace):
                mounts.attach(stack.enter_context(mounts.cloned(home / "workspace", userns)), rootfs.workspace)
        return rootfs

    def _overlay(self, lower: int, layer: int, target: Path, *, owner: int) -> None:
        """Mount the overlay at `target/root`, on kernels that know the clones only as mounts of this namespace, too.

        Detached ones are taken from some version after 6.12 on, and are cheaper: so that is tried, until it fails.
        """
        if not self._layers_must_stand:
            try:
                return mounts.overlay(lower, layer, target / "root", owner=owner)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        with mounts.standing(lower, target / "lower"), mounts.standing(layer, target / "layer"):
            mounts.overlay(lower, layer, target / "root", owner=owner)
        self._layers_must_stand = True
        return None

    def _unmount(self, sandbox_id: SandboxId) -> None:
        self._home(sandbox_id)
        self._limits.pop(sandbox_id, None)
        self._clamped.discard(sandbox_id)
        self._next_look.pop(sandbox_id, None)
        target = self.pool.mounts / sandbox_id
        for directory in (*(target / name for name in ("root", "workspace", "lower", "layer")), target):
            mounts.unmount_all(directory)
            with contextlib.suppress(FileNotFoundError):
                directory.rmdir()

    def _destroy(self, sandbox_id: SandboxId) -> None:
        home = self._home(sandbox_id)
        self._unmount(sandbox_id)
        self._remove(sandbox_id, home.with_name(home.name + _HALF_MADE))
        # In place: a full file system lets us delete, but not rename.
        self._remove(sandbox_id, home)

    def _remove(self, sandbox_id: SandboxId, directory: Path) -> None:
        if not directory.exists():
            return
        self.pool.trees.remove([directory / part for part in _PARTS], sandbox_id)
        directory.rmdir()

    def _list(self) -> set[SandboxId]:
        names = [path.name.removesuffix(_HALF_MADE) for path in self.pool.sandboxes.iterdir()]
        names += [path.name for path in self.pool.mounts.iterdir()]
        return {SandboxId(name) for name in names if is_id(name, "sbx")}

    def _enforce_inodes(self, sandbox_id: SandboxId, limits: Limits) -> None:
        trees, home = self.pool.trees, self._home(sandbox_id)
        begin = time.monotonic()
        if self._limits.get(sandbox_id) != limits or not home.exists() or begin < self._next_look.get(sandbox_id, 0):
            return
        over = trees.has_more_inodes([home / part for part in _PARTS], limits.inodes)
        # Counting a million takes seconds, and a sandbox decides whether we have to: a twentieth of a core at most.
        self._next_look[sandbox_id] = begin + 20 * (time.monotonic() - begin)
        if over and sandbox_id not in self._clamped:
            trees.limit(sandbox_id, 1)
            self._clamped.add(sandbox_id)
        elif not over and sandbox_id in self._clamped:
            trees.limit(sandbox_id, limits.disk_mb * _MIB)
            self._clamped.discard(sandbox_id)

    def _probe_idmap(self) -> Probe:
        name = "id-mapped layers"
        target = self.pool.mounts / ".probe"
        home = self.pool.sandboxes / ".probe"
        try:
            for directory in (home / "layer/upper", home / "layer/work", home / "workspace", home / "lower"):
                directory.mkdir(parents=True, exist_ok=True)
            self._mount_at(target, home, home / "lower", _PROBE_IDS)
            return Probe(name, True, "an overlay was mounted through a user namespace's id mapping", required=False)
        except OSError as error:
            return Probe(
                name,
                False,
                str(error),
                "crun and runc need Linux ≥ 5.19 with user namespaces; runsc does not.",
                required=False,
            )
        finally:
            for part in ("root", "workspace", "lower", "layer"):
                mounts.unmount_all(target / part)
            remove_tree(target)
            remove_tree(home)
