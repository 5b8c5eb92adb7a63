"""A real node as a process of its own, on a template that is just a directory.

node_process.py <home> <runtime> [<pool_mb>]
"""

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crash.tracer import sitecustomize
from node.copying_archiver import CopyingArchiver

from skerry.config import Config
from skerry.model.errors import NotFound
from skerry.model.template import BuildProgress, TemplateState, TemplateStatus
from skerry.node import daemon
from skerry.node.layers import Layers


@dataclass(frozen=True)
class StaticImage:
    name: str
    digest: str
    root: Path


class StaticImages:
    """One template, `tiny`, at <home>/tiny."""

    def __init__(self, config: Config, layers: Layers) -> None:
        self._root = config.home / "tiny"

    async def states(self) -> Sequence[TemplateState]:
        return [TemplateState("tiny", "busybox", TemplateStatus.READY, "sha256:tiny")]

    async def build(self, name: str) -> AsyncIterator[BuildProgress]:
        await self.ready(name)
        yield BuildProgress(name, 0.5, "half")
        yield BuildProgress(name, 1.0, "done")

    async def ready(self, name: str) -> StaticImage:
        if name != "tiny":
            raise NotFound(f"There is no template '{name}'. There are: tiny.")
        return StaticImage(name, "sha256:tiny", self._root)

    async def close(self) -> None: ...


def config_of(home: Path, runtime: str, pool_mb: int = 2048) -> Config:
    return Config(
        home=home,
        runtime=runtime,
        allow_shared_kernel=True,
        pool_mb=pool_mb,
        output_cap_mb=64,
        user="root",
        dns="127.0.0.1",
    )


def trace() -> None:
    """Let a test stop this process at a step of its work: see `node_steps`."""
    directory = os.environ.get("SKERRY_TEST_STEPS")
    if directory is not None:
        tracer = sitecustomize.Tracer(Path(directory), "node")
        threading.setprofile(tracer.watch)
        signal.signal(signal.SIGUSR1, tracer.arm)


if __name__ == "__main__":
    trace()
    config = config_of(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
    raise SystemExit(daemon.run(config, StaticImages, lambda _: CopyingArchiver(config.home / "store")))
