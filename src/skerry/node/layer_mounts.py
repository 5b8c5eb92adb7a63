"""The mounts of one sandbox: an overlay of its layer over its template, and its workspace, with its ids. Blocking.

Knows directories and id ranges; not what they are charged, nor how long they live.
"""

import errno
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from skerry.model.bundle import IdRange
from skerry.model.capability import Probe
from skerry.node import mounts
from skerry.node.idmap import IdMaps
from skerry.node.trees import remove_tree

_PROBE_IDS = IdRange(1_000_000)


@dataclass(frozen=True, slots=True)
class Rootfs:
    """Host paths of a mounted sandbox."""

    root: Path
    workspace: Path


class LayerMounts:
    """Makes and removes them. Each verb may be called twice. `close` gives the id mappings back."""

    def __init__(self) -> None:
        self._maps = IdMaps()
        self._layers_must_stand = False  # found out with the first mount

    def close(self) -> None:
        self._maps.close()

    def mount(self, target: Path, home: Path, template: Path, ids: IdRange | None) -> Rootfs:
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

    def unmount(self, target: Path) -> None:
        """Not mounted: success."""
        for directory in (*(target / name for name in ("root", "workspace", "lower", "layer")), target):
            mounts.unmount_all(directory)
            with suppress(FileNotFoundError):
                directory.rmdir()

    def probe(self, target: Path, home: Path) -> Probe:
        """Try an id-mapped overlay, in two directories that are made for it."""
        name = "id-mapped layers"
        try:
            for directory in (home / "layer/upper", home / "layer/work", home / "workspace", home / "lower"):
                directory.mkdir(parents=True, exist_ok=True)
            self.mount(target, home, home / "lower", _PROBE_IDS)
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
