"""What the supervisor stands on, as protocols: layers, images, network. The runtime's is in `seams`.

Each verb is idempotent, so that the same calls make, repair and clean. Nothing here is implemented.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.model.bundle import IdRange
from skerry.model.capability import Probe
from skerry.model.ids import SandboxId
from skerry.model.sandbox import Limits, NetworkMode
from skerry.model.template import BuildProgress, TemplateState
from skerry.seams import Runtime


class RootfsPaths(Protocol):
    @property
    def root(self) -> Path: ...
    @property
    def workspace(self) -> Path: ...


class Layers(Protocol):
    @property
    def disk_limit(self) -> str: ...
    async def create(
        self, sandbox_id: SandboxId, template_root: Path, limits: Limits, ids: IdRange | None
    ) -> RootfsPaths: ...
    async def mount(
        self, sandbox_id: SandboxId, template_root: Path, limits: Limits, ids: IdRange | None
    ) -> RootfsPaths: ...
    async def enforce_inodes(self) -> set[SandboxId]: ...
    async def unmount(self, sandbox_id: SandboxId) -> None: ...
    async def destroy(self, sandbox_id: SandboxId) -> None: ...
    async def list(self) -> set[SandboxId]: ...
    async def probes(self) -> Sequence[Probe]: ...


class ReadyImage(Protocol):
    @property
    def digest(self) -> str: ...
    @property
    def root(self) -> Path: ...


class Images(Protocol):
    async def states(self) -> Sequence[TemplateState]: ...
    def build(self, name: str) -> AsyncIterator[BuildProgress]: ...
    async def ready(self, name: str) -> ReadyImage: ...
    async def close(self) -> None: ...


class Network(Protocol):
    async def attach(self, sandbox_id: SandboxId, mode: NetworkMode) -> Path: ...
    async def detach(self, sandbox_id: SandboxId) -> None: ...
    async def list(self) -> set[SandboxId]: ...
    async def resolv_conf(self, mode: NetworkMode) -> str: ...
    async def probes(self) -> Sequence[Probe]: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one node, opened."""

    runtime: Runtime
    layers: Layers
    images: Images
    network: Network
    sbxd: Path
    bundles: Path  # a directory for each sandbox's bundle is made in it
