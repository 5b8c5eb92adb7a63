"""What a runtime is handed to start one sandbox: a root that is mounted, a workspace, limits, a network namespace."""

from dataclasses import dataclass
from pathlib import Path

from skerry.model.ids import SandboxId
from skerry.model.sandbox import Limits


@dataclass(frozen=True, slots=True)
class IdRange:
    """65,536 host ids, from `base`, that a sandbox's user namespace maps its own 0…65535 to."""

    base: int
    size: int = 65_536


@dataclass(frozen=True, slots=True)
class Bundle:
    """All paths are on the host. `id_range` is set exactly for runtimes with `needs_id_range`."""

    sandbox_id: SandboxId
    directory: Path  # private to the runtime: config.json, logs, pid file
    rootfs: Path
    workspace: Path  # mounted at /workspace
    sbxd: Path  # mounted read-only at /.skerry/sbxd
    netns: Path  # a bound network namespace; loopback only under `none`
    resolv_conf: str
    hostname: str
    limits: Limits
    id_range: IdRange | None = None
