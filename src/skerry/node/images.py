"""Templates as this node has them: built on demand, kept by content, shared read-only by all sandboxes.

An image is `images/<digest>/root`, a sealed tree, beside `image.json`. It is built under another name and renamed, so
what has its name is whole. Nothing here removes an image that a sandbox may lie on.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from skerry.config import Config
from skerry.model.capability import Probe
from skerry.model.errors import NotFound, Refused, SkerryError, TooBusy
from skerry.model.template import BuildProgress, TemplateState, TemplateStatus
from skerry.node import declarations
from skerry.node.declarations import Declaration
from skerry.node.image_build import KEYRING, build_root
from skerry.node.layers import Layers
from skerry.node.trees import disk_usage, remove_tree

_HALF_MADE = ".new"
_TOOL = "mmdebstrap"
_ROOM_BYTES = 768 << 20


@dataclass(frozen=True, slots=True)
class Image:
    """A built template. `root` is what a sandbox's root layer is laid over."""

    name: str
    digest: str
    root: Path


@dataclass(slots=True)
class _Build:
    """A build that runs or has failed, followed by any number of readers."""

    progress: BuildProgress
    task: asyncio.Task[None] | None = None
    error: SkerryError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, progress: BuildProgress) -> None:
        self.progress = progress
        self.changed.set()
        self.changed = asyncio.Event()


class Images:
    """The templates of one instance. `layers` must be open."""

    def __init__(self, config: Config, layers: Layers, directory: Path | None = None) -> None:
        self._config = config
        self._layers = layers
        self._declarations = declarations.load_all(directory or declarations.builtin_directory())
        self._builds: dict[str, _Build] = {}

    async def states(self) -> list[TemplateState]:
        """Every declared template and how far it is."""
        return [await asyncio.to_thread(self._state, declaration) for declaration in self._declarations.values()]

    async def ready(self, name: str) -> Image:
        """A template that is built.

        Raises:
            NotFound: No such template; the message lists the known ones.
            Refused: It is not built yet (`template_not_ready`).
        """
        declaration = self._declaration(name)
        digest = declaration.digest()
        if not await asyncio.to_thread(self._home(declaration).is_dir):
            raise Refused(
                f"The template '{name}' is not built on this host yet. Build it first.", code="template_not_ready"
            )
        return Image(name, digest, self._home(declaration) / "root")

    async def build(self, name: str) -> AsyncIterator[BuildProgress]:
        """Build a template, or follow the build that runs. It goes on when its followers leave. Ready: ends at once.

        Raises:
            NotFound: No such template.
            Refused: The build failed; the message has its last lines. Nothing of it is left.
        """
        declaration = self._declaration(name)
        build = self._builds.get(name)
        if build is None or build.error is not None:
            if self._home(declaration).is_dir():
                yield BuildProgress(name, 1.0, "ready")
                return
            build = _Build(BuildProgress(name, 0.0, "starting"))
            build.task = asyncio.create_task(self._run(declaration, build))  # `close` ends it
            self._builds[name] = build
        while build.error is None:
            changed, progress = build.changed, build.progress
            yield progress
            if progress.fraction >= 1.0:
                return
            await changed.wait()
        raise build.error

    async def probes(self) -> list[Probe]:
        """What this host needs in order to build templates."""
        found = {_TOOL: shutil.which(_TOOL) is not None, KEYRING: await asyncio.to_thread(Path(KEYRING).exists)}
        missing = [what for what, there in found.items() if not there]
        if not missing:
            return [Probe("templates", True, f"built with {_TOOL} from {self._config.mirror}")]
        remedy = "apt-get install mmdebstrap debian-archive-keyring"
        return [Probe("templates", False, f"missing: {', '.join(missing)}", remedy)]

    async def close(self) -> None:
        """End the builds that run; nothing of them is left."""
        tasks = [build.task for build in self._builds.values() if build.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._builds.clear()

    def _declaration(self, name: str) -> Declaration:
        try:
            return self._declarations[name]
        except KeyError:
            known = ", ".join(sorted(self._declarations))
            raise NotFound(f"There is no template '{name}'. Known: {known}.") from None

    def _home(self, declaration: Declaration) -> Path:
        return self._layers.pool.images / declaration.digest()

    def _state(self, declaration: Declaration) -> TemplateState:
        home, build = self._home(declaration), self._builds.get(declaration.name)
        name, text = declaration.name, declaration.description
        if home.is_dir():
            about = json.loads((home / "image.json").read_text())
            return TemplateState(name, text, TemplateStatus.READY, declaration.digest(), about["size_bytes"])
        if build is None:
            return TemplateState(name, text, TemplateStatus.PENDING)
        if build.error is None:
            return TemplateState(name, text, TemplateStatus.BUILDING)
        return TemplateState(name, text, TemplateStatus.FAILED, error=build.error.message)

    async def _run(self, declaration: Declaration, build: _Build) -> None:
        name = declaration.name
        error: SkerryError | None = Refused(f"Building '{name}' was ended before it was done.", code="build_ended")
        try:
            await self._make(declaration, build)
            error = None
        except SkerryError as caught:
            error = caught
        except OSError as caught:
            error = Refused(f"Building '{name}' failed: {caught}.")
        finally:
            # Told last: who hears of the end finds nothing half-made.
            if error is None:
                del self._builds[name]
            build.error = error
            build.tell(BuildProgress(name, 1.0, "ready") if error is None else build.progress)

    async def _make(self, declaration: Declaration, build: _Build) -> None:
        home = self._home(declaration)
        unfinished = home.with_name(home.name + _HALF_MADE)

        def report(fraction: float, line: str) -> None:
            build.tell(BuildProgress(declaration.name, max(fraction, build.progress.fraction), line))

        try:
            await asyncio.to_thread(self._begin, unfinished)
            await build_root(declaration, unfinished / "root", self._config.mirror, report)
            await asyncio.to_thread(self._finish, declaration, unfinished, home)
        finally:
            await asyncio.shield(asyncio.to_thread(self._discard, unfinished))

    def _begin(self, unfinished: Path) -> None:
        self._discard(unfinished)  # a crash may have left one
        if (free := self._layers.pool.free_bytes()) < _ROOM_BYTES:
            raise TooBusy(
                f"The pool has {free >> 20} MB left; building a template takes {_ROOM_BYTES >> 20} MB. "
                "Destroy sandboxes, free disk space, or raise pool_mb.",
                code="disk_full",
            )
        unfinished.mkdir(mode=0o700)
        self._layers.pool.trees.make_image(unfinished / "root")

    def _finish(self, declaration: Declaration, unfinished: Path, home: Path) -> None:
        root = unfinished / "root"
        root.chmod(0o755)
        about = {"name": declaration.name, "suite": declaration.suite, "size_bytes": disk_usage(root)}
        (unfinished / "image.json").write_text(json.dumps(about))
        self._layers.pool.trees.seal_image(root)
        unfinished.rename(home)

    def _discard(self, unfinished: Path) -> None:
        if unfinished.is_dir():
            self._layers.pool.trees.remove_image(unfinished / "root")
        remove_tree(unfinished)
