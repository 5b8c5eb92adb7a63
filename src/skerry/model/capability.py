"""What a host, runtime or provider can and cannot do, as data: reported before use, refused on use."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that was tried on this host. `remedy` says what to do when it failed.

    `required`: without it no sandbox runs. Left out where something lesser takes its place.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A provider's report. `runtime` is the pinned one; without isolation of its own, `shares_kernel` is true.

    `memory_mb`, `cpu_millis`, `disk_mb`: what the host has; no sandbox can be given more. 0: not told.
    """

    provider: str
    runtime: str
    runtime_version: str
    shares_kernel: bool
    network_modes: tuple[str, ...]
    keeps_memory: bool
    disk_limit: str  # "simple-quota", "qgroup", "none"
    memory_mb: int = 0
    cpu_millis: int = 0
    disk_mb: int = 0
    storage: str = ""  # where archives lie, for the eye: no secrets; empty: nowhere, so nothing can be stopped
    probes: tuple[Probe, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Health:
    """A fleet that answers: `runtime` was booted for trial when it started, the pool holds all files."""

    runtime: str
    running: int  # sandboxes
    pool_bytes: int
    pool_free_bytes: int
