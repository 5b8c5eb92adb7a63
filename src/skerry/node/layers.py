"""What a sandbox's files lie on: a root layer over its template, and a workspace, limited together, mounted for it.

On disk every id is canonical (0 is 0); the mounts translate. Nothing here starts a process in a sandbox, and nothing
that a sandbox wrote is ever opened by name.
"""

import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from skerry.config import Config
from skerry.model.bundle import IdRange
from skerry.model.capability import Probe
from skerry.model.errors import Invalid, NotFound, Refused
from skerry.model.ids import SandboxId, TreeId, is_id
from skerry.model.leak import LeakKind
from skerry.model.sandbox import Limits
from skerry.node import inherited, quota
from skerry.node.captures import ABOUT, Captures
from skerry.node.kept_trees import find, missing, uncopied
from skerry.node.layer_mounts import LayerMounts, Rootfs
from skerry.node.mounts import mounts_under
from skerry.node.pool import Pool, close_pool, full, open_pool, require_room
from skerry.node.traces import Trace, entries
from skerry.node.trees import FLUSHING
from skerry.node.turns import Turns

_MIB = 1 << 20
_HALF_MADE = ".new"
_PARTS = ("layer", "workspace")


class Layers:
    """The layers of one instance. Each verb may be called twice, and after a crash at any step of itself.

    A cancelled call is done to its end all the same; the next one for that sandbox waits for it. What the kernel
    refuses is raised as Refused.
    """

    def __init__(self, config: Config, *, opened: Pool | None = None) -> None:
        self._config = config
        self.turns = Turns("layers")
        self._mounts = LayerMounts()
        self._limits: dict[SandboxId, Limits] = {}
        self._clamped: set[SandboxId] = set()
        self._next_look: dict[SandboxId, float] = {}
        self._pool = opened

    async def open(self) -> None:
        """Make the pool ready. Mounts of running sandboxes stay as they are.

        Raises:
            Refused: It cannot be mounted.
        """
        self._pool = await self.turns.run(lambda: open_pool(self._config))

    async def close(self) -> None:
        """Unmount every sandbox and the pool. Running sandboxes keep what they have open until they end."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await self.turns.run(lambda: close_pool(pool))
        self._mounts.close()

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
        self,
        sandbox_id: SandboxId,
        template_root: Path,
        limits: Limits,
        ids: IdRange | None = None,
        source: TreeId | None = None,
    ) -> Rootfs:
        """Make an empty layer and a workspace and mount them over the template. An existing sandbox's are kept.

        `ids`: the range that the sandbox's user namespace maps its ids to; None: ids are shown as they are.
        `source`: the tree that the workspace is a copy of; None: it is empty.

        Raises:
            TooBusy: The pool is nearly full.
            NotFound: `source` is not here.
            Refused: The kernel would not mount it, or disk use cannot be limited here. Nothing is left behind.
        """
        return await self.turns.alone(sandbox_id, lambda: self._create(sandbox_id, template_root, limits, ids, source))

    async def resume(
        self, sandbox_id: SandboxId, template_root: Path, limits: Limits, ids: IdRange | None = None
    ) -> Rootfs:
        """Lay a fresh layer over the template beside the workspace that is kept, and mount both.

        What fails leaves the workspace; `stop` puts away the rest.

        Raises:
            NotFound: There is no such workspace.
            TooBusy: The pool is nearly full.
            Refused: The kernel would not mount it.
        """
        return await self.turns.alone(sandbox_id, lambda: self._resume(sandbox_id, template_root, limits, ids))

    async def stop(self, sandbox_id: SandboxId) -> None:
        """Unmount, remove the layer, and keep the workspace: on disk, and unchanged from then on. Stopped: the same.

        Raises:
            NotFound: There is no such workspace.
        """
        await self.turns.alone(sandbox_id, lambda: self._stop(sandbox_id))

    async def mount(
        self, sandbox_id: SandboxId, template_root: Path, limits: Limits, ids: IdRange | None = None
    ) -> Rootfs:
        """Mount an existing sandbox's files again (after a reboot) and put its limits in force. Mounted: they stay.

        Raises:
            NotFound: There are none.
            Refused: The kernel would not mount them.
        """
        return await self.turns.alone(sandbox_id, lambda: self._mount(sandbox_id, template_root, limits, ids))

    async def unmount(self, sandbox_id: SandboxId) -> None:
        """Unmount a sandbox's files and keep them. Not mounted, or unknown: success."""
        await self.turns.alone(sandbox_id, lambda: self._unmount(sandbox_id))

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Unmount and remove a sandbox's files. Unknown: success."""
        await self.turns.alone(sandbox_id, lambda: self._destroy(sandbox_id))

    async def usage_bytes(self, sandbox_id: SandboxId) -> int:
        """Bytes that a sandbox's layer and workspace hold. Unknown: 0."""
        paths = [self._home(sandbox_id) / part for part in _PARTS]
        return await self.turns.run(lambda: self.pool.trees.usage_bytes(paths, sandbox_id))

    async def charged_bytes(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, int]:
        """Bytes charged to each, as of the file system's last commit (at most half a minute ago).

        Cheap, so empty where nobody counts: without quotas it would take a walk over all files.
        """
        return await self.turns.run(lambda: self.pool.trees.charged_bytes(sandbox_ids))

    async def room(self) -> tuple[int, int]:
        """The bytes of the pool, and those that it can still take."""

        def look() -> tuple[int, int]:
            here = os.statvfs(self.pool.path)
            return here.f_blocks * here.f_frsize, self.pool.free_bytes()

        return await self.turns.run(look)

    async def free_bytes(self) -> int:
        """Bytes that the pool can still take, the disk under a sparse image considered."""
        return await self.turns.run(self.pool.free_bytes)

    async def enforce_inodes(self) -> set[SandboxId]:
        """Hold every sandbox to its `Limits.inodes`; those that are at it. To be called every few seconds.

        btrfs counts bytes, not files, so this looks at what is there: who has too many gets no more space (EDQUOT)
        until it has removed some. Between two calls more files may be made; their metadata counts as disk space.
        """
        for sandbox_id, limits in list(self._limits.items()):
            await self.turns.alone(sandbox_id, lambda i=sandbox_id, n=limits: self._enforce_inodes(i, n))
        return set(self._clamped)

    async def probes(self) -> list[Probe]:
        """What this host can do for files, tried. The pool must be open."""
        return [self.pool.probe, await self.turns.run(self._probe_idmap)]

    async def list(self) -> set[SandboxId]:
        """Every sandbox that anything is left of: whole, half-made, half-removed, or only mounted."""
        return await self.turns.run(self._list)

    async def traces(self) -> Sequence[Trace]:
        """All directories of files, mounts and quota groups, and whose they are: a group's owner is its number."""
        return await self.turns.run(self._traces)

    def _home(self, sandbox_id: SandboxId) -> Path:
        if not is_id(sandbox_id, "sbx"):
            raise Invalid(f"Not a sandbox id: {sandbox_id!r}.", field="id")
        return self.pool.sandboxes / sandbox_id

    def _create(
        self, sandbox_id: SandboxId, template: Path, limits: Limits, ids: IdRange | None, source: TreeId | None
    ) -> Rootfs:
        home = self._home(sandbox_id)
        if home.exists():
            return self._mount(sandbox_id, template, limits, ids)
        self._require_limits()
        require_room(self.pool, 0)
        self._make(sandbox_id, home, limits, source)
        try:
            return self._mount(sandbox_id, template, limits, ids)
        except Refused:
            self._destroy(sandbox_id)
            raise

    def _resume(self, sandbox_id: SandboxId, template: Path, limits: Limits, ids: IdRange | None) -> Rootfs:
        home = self._home(sandbox_id)
        if find(self.pool, TreeId(sandbox_id)) is None:
            raise missing(TreeId(sandbox_id))
        self._require_limits()
        require_room(self.pool, 0)
        try:
            if not home.exists():
                Captures(self.pool).hand_over(TreeId(sandbox_id), home)
            self._put_away(sandbox_id, home)
            self.pool.trees.seal(home / "workspace", False)
            self._lay(sandbox_id, home, None)
            self._limits[sandbox_id] = limits
            rootfs = self._mounts.mount(self.pool.mounts / sandbox_id, home, template, ids)
            # Last: what it kept may fill its limit alone.
            self.pool.trees.limit(sandbox_id, limits.disk_mb * _MIB)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise full(self.pool) from error
            raise Refused(f"The files of {sandbox_id} cannot be mounted: {error}.") from error
        return rootfs

    def _stop(self, sandbox_id: SandboxId) -> None:
        home = self._home(sandbox_id)
        if not (home / "workspace").is_dir():
            raise missing(TreeId(sandbox_id))
        self._put_away(sandbox_id, home)
        self.pool.trees.seal(home / "workspace", True)
        self.pool.trees.flush(home / "workspace")

    def _put_away(self, sandbox_id: SandboxId, home: Path) -> None:
        """All but the workspace, and the limit: who is at it may remove nothing."""
        self._unmount(sandbox_id)
        try:
            self.pool.trees.limit(sandbox_id, None)
        except OSError as error:
            # Without a group there is no limit; and a full disk lets layers go first.
            if error.errno not in (errno.ENOENT, errno.ENOSPC):
                raise
        self.pool.trees.remove([home / "layer", home / f"workspace{FLUSHING}"], None)
        (home / ABOUT).unlink(missing_ok=True)

    def _require_limits(self) -> None:
        if self.disk_limit == "none" and not self._config.allow_unlimited_disk:
            raise Refused(
                f"Disk limits cannot be enforced here ({self.pool.probe.detail}), so one sandbox could fill the disk. "
                f"{self.pool.probe.remedy} To run without disk limits all the same, set allow_unlimited_disk.",
                code="no_disk_limit",
            )

    def _make(self, sandbox_id: SandboxId, home: Path, limits: Limits, source: TreeId | None) -> None:
        """All under another name first: what has its own name is whole."""
        unfinished = home.with_name(home.name + _HALF_MADE)
        if unfinished.exists():
            self._remove(sandbox_id, unfinished)
        found = None if source is None else find(self.pool, source)
        if source is not None and found is None:
            raise missing(source)
        try:
            unfinished.mkdir(mode=0o700)
            self._lay(sandbox_id, unfinished, limits.disk_mb * _MIB)
            if found is None:
                self.pool.trees.make([unfinished / "workspace"], sandbox_id, limits.disk_mb * _MIB)
                (unfinished / "workspace").chmod(0o755)
            else:
                self.pool.trees.copy(found.path, unfinished / "workspace", owner=sandbox_id)
                inherited.note(self.pool.trees, found.path, unfinished)
                inherited.check(unfinished, unfinished / "workspace", limits.disk_mb * _MIB)
            unfinished.rename(home)
        except Refused:
            self._remove(sandbox_id, unfinished)
            raise
        except OSError as error:
            self._remove(sandbox_id, unfinished)
            if source is not None:
                raise uncopied(self.pool, source, error) from error
            if error.errno == errno.ENOSPC:
                raise full(self.pool) from error
            raise Refused(f"The files of {sandbox_id} cannot be made: {error}.") from error

    def _lay(self, sandbox_id: SandboxId, home: Path, limit_bytes: int | None) -> None:
        self.pool.trees.make([home / "layer"], sandbox_id, limit_bytes)
        for name in ("upper", "work"):
            (home / "layer" / name).mkdir()
        (home / "layer/upper").chmod(0o755)  # whatever the umask is: this is / inside, as the workspace is /workspace

    def _mount(self, sandbox_id: SandboxId, template: Path, limits: Limits, ids: IdRange | None) -> Rootfs:
        home = self._home(sandbox_id)
        if not home.exists():
            raise NotFound(f"The files of {sandbox_id} are not here.")
        if sandbox_id not in self._limits:
            self.pool.trees.limit(sandbox_id, limits.disk_mb * _MIB)
        self._limits[sandbox_id] = limits
        target = self.pool.mounts / sandbox_id
        try:
            return self._mounts.mount(target, home, template, ids)
        except OSError as error:
            raise Refused(f"The files of {sandbox_id} cannot be mounted: {error}.") from error

    def _unmount(self, sandbox_id: SandboxId) -> None:
        self._home(sandbox_id)
        self._limits.pop(sandbox_id, None)
        self._clamped.discard(sandbox_id)
        self._next_look.pop(sandbox_id, None)
        self._mounts.unmount(self.pool.mounts / sandbox_id)

    def _destroy(self, sandbox_id: SandboxId) -> None:
        home = self._home(sandbox_id)
        self._unmount(sandbox_id)
        self._remove(sandbox_id, home.with_name(home.name + _HALF_MADE))
        # In place: a full file system lets us delete, but not rename.
        self._remove(sandbox_id, home)

    def _remove(self, sandbox_id: SandboxId, directory: Path) -> None:
        if not directory.exists():
            return
        self.pool.trees.remove([directory / part for part in (*_PARTS, f"workspace{FLUSHING}")], sandbox_id)
        (directory / ABOUT).unlink(missing_ok=True)
        directory.rmdir()

    def _list(self) -> set[SandboxId]:
        names = [path.name.removesuffix(_HALF_MADE) for path in self.pool.sandboxes.iterdir()]
        names += [path.name for path in self.pool.mounts.iterdir()]
        return {SandboxId(name) for name in names if is_id(name, "sbx")}

    def _traces(self) -> Sequence[Trace]:
        place = self.pool.mounts.resolve()
        found = entries(LeakKind.SUBVOLUME, self.pool.sandboxes, _HALF_MADE)
        mounted = [entry.target for entry in mounts_under(place) if entry.target != place]
        found += [Trace(LeakKind.MOUNT, one.relative_to(place).parts[0], str(one)) for one in mounted]
        found += [one for one in entries(LeakKind.MOUNT, place) if Path(one.name) not in mounted]
        # A native pool's file system may have other instances' groups, and its owner's.
        groups = self.pool.trees.groups() if self.pool.image is not None else []
        return found + [Trace(LeakKind.QUOTA_GROUP, str(one), f"{quota.shown(one)} {self.pool.path}") for one in groups]

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
        return self._mounts.probe(self.pool.mounts / ".probe", self.pool.sandboxes / ".probe")
