"""What this host can do and what the instance's files look like, for `doctor`. Knows the doing wing; starts no server.

Everything is tried by doing, in places of its own: a server that runs is never touched.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skerry.config import Config
from skerry.model.capability import Probe
from skerry.model.errors import SkerryError

_MIB = 1 << 20
_PROGRAMS = {"ip": "iproute2", "nft": "nftables", "mkfs.btrfs": "btrfs-progs", "mmdebstrap": "mmdebstrap"}


async def host_probes(config: Config) -> list[Probe]:
    """The programs that are needed, and each runtime, booted. Root only."""
    from skerry.node.runtimes import RUNTIMES

    found = [_sbxd_probe(config), *(_program_probe(name, package) for name, package in _PROGRAMS.items())]
    for name, make in RUNTIMES.items():
        required = name == config.runtime
        probe = (
            await make(config).probe()
            if shutil.which(name)
            else Probe(name, False, f"{name} is not installed", f"apt-get install {name}")
        )
        found.append(replace(probe, required=required))
    return found


async def idle_probes(config: Config) -> list[Probe]:
    """What a running server would tell of its layers and networks, tried here while none runs. Root only."""
    from skerry.node.network import Network

    return [*await _layer_probes(config), *await Network(config).probes()]


async def _layer_probes(config: Config) -> Sequence[Probe]:
    """Of a small pool made where the real one lies or would lie, and taken away."""
    try:
        config.home.mkdir(mode=0o711, parents=True, exist_ok=True)
        return await _scratch_probes(config)
    except OSError as error:
        return [Probe("home", False, f"{config.home} cannot be used: {error}", "Point SKERRY_HOME elsewhere.")]


async def _scratch_probes(config: Config) -> Sequence[Probe]:
    from skerry.node.layers import Layers

    with tempfile.TemporaryDirectory(prefix="doctor-", dir=config.home) as scratch:
        layers = Layers(config.model_copy(update={"home": Path(scratch), "pool_mb": 1024}))
        try:
            await layers.open()
            found = await layers.probes()
        except SkerryError as error:
            found = [Probe("pool", False, error.message)]
        finally:
            await layers.close()
    return [replace(probe, name=_TRIED if probe.name == "pool" else probe.name) for probe in found]


_TRIED = "pool can be made"


def pool_probe(config: Config) -> tuple[Probe, dict[str, object] | None]:
    """The real pool, for a person and for a program (sizes in MB; None: not made yet)."""
    from skerry.node.pool import RESERVE_BYTES, look

    state = look(config)
    if state is None:
        return Probe("pool", True, f"not made yet; `up` makes it, of {config.pool_mb} MB", required=False), None
    sizes = (state.image_bytes, state.size_bytes, state.used_bytes, state.free_bytes)
    image, size, used, free = (None if one is None else one // _MIB for one in sizes)
    told: dict[str, object] = {
        "path": str(state.path),
        "mounted": state.mounted,
        "image_mb": image,
        "size_mb": size,
        "used_mb": used,
        "free_mb": free,
        "disk_limit": state.disk_limit,
    }
    where = f"{state.path}" if image is None else f"{state.path}, an image of {image} MB"
    if image is not None and image > config.pool_mb:
        where += f" (pool_mb is {config.pool_mb}, but a pool never shrinks)"
    if state.free_bytes is None:
        return Probe("pool", True, f"{where}; not mounted, `up` mounts it"), told
    detail = f"{where}; {used} of {size} MB used, {free} MB free; disk limit: {state.disk_limit}"
    enough = state.free_bytes >= RESERVE_BYTES
    return Probe("pool", enough, detail, "Destroy sandboxes, free disk space, or raise pool_mb."), told


async def store_probe(config: Config) -> Probe:
    """Where the files of stopped sandboxes lie, and whether an object goes there and comes back. A directory that is
    not there yet is left so.
    """
    from skerry.node.object_store import NAME, storage_probe

    if _is_to_be_made(config.archive_place):
        return Probe(NAME, True, f"{config.archive_place}: not made yet; the first stop makes it", required=False)
    return await storage_probe(config)


def _is_to_be_made(place: str) -> bool:
    kind, _, directory = place.partition("://")
    return kind == "file" and not Path(directory).exists()


def _program_probe(name: str, package: str) -> Probe:
    path = shutil.which(name)
    return Probe(name, path is not None, path or f"{name} is not installed", f"apt-get install {package}")


def _sbxd_probe(config: Config) -> Probe:
    there = os.access(config.sbxd, os.X_OK)
    detail = str(config.sbxd) if there else f"{config.sbxd} does not exist or cannot be executed"
    return Probe("sbxd", there, detail, "`./skerry up` builds it; by hand: make -C sbxd, and copy it there")
