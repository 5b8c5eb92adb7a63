"""The parts of a node on a real host: which classes they are, in which order they open and close."""

from collections.abc import Awaitable, Callable

from skerry.config import Config
from skerry.node import runtimes
from skerry.node.kept_trees import KeptTrees
from skerry.node.layers import Layers
from skerry.node.network.network import Network
from skerry.node.parts import Archiver, Images, Parts

MakeImages = Callable[[Config, Layers], Images]
MakeArchiver = Callable[[Config], Archiver]


class OpenedParts:
    """The parts, and how they are closed: `leave` when sandboxes go on, `close` when none is left running."""

    def __init__(
        self, parts: Parts, leave: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]
    ) -> None:
        self.parts = parts
        self.leave = leave
        self.close = close


async def open_parts(config: Config, make_images: MakeImages, make_archiver: MakeArchiver) -> OpenedParts:
    """The real parts of this host, opened. `make_images` and `make_archiver` are the real ones, but for tests.

    Raises:
        Refused: One of them cannot work here; the message says why and what to do.
    """
    runtime = await runtimes.choose(config)
    layers, network = Layers(config), Network(config)
    await layers.open()
    trees = KeptTrees(layers.pool, layers.turns)
    await trees.open()
    await network.open()
    images = make_images(config, layers)
    bundles = config.node_dir / "bundles"
    bundles.mkdir(mode=0o711, exist_ok=True)

    async def leave() -> None:
        await images.close()
        # The pool stays mounted: running sandboxes live on it.
        await network.close()
        await runtime.close()

    async def close() -> None:
        await leave()
        await layers.close()

    archiver = make_archiver(config) if config.archive_place else None
    parts = Parts(runtime, layers, images, network, config.sbxd, bundles, trees, archiver)
    return OpenedParts(parts, leave, close)
