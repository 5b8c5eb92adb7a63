"""Whether a runtime works on this host, found out by booting an empty sandbox with it. Nothing else proves it."""

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

from skerry.config import Config
from skerry.model.bundle import Bundle, IdRange
from skerry.model.capability import Probe
from skerry.model.errors import Refused
from skerry.model.ids import new_sandbox_id
from skerry.model.sandbox import Limits
from skerry.node import namespaces
from skerry.seams import Runtime

DEADLINE_S = 20.0
_FRAME_HEADER_BYTES = 12
_HELLO = 1
_PROBE_IDS = IdRange(0x7000_0000)  # far above the ranges of real sandboxes and of users


async def boot_probe(runtime: Runtime, config: Config, version: str) -> Probe:
    """Boot, wait for sbxd's greeting, delete, all under a deadline.

    Raises:
        SkerryError, OSError: It did not work.
    """
    if not os.access(config.sbxd, os.X_OK):
        raise Refused(f"There is no sbxd at {config.sbxd}. Run 'skerry up', which builds it.")
    config.node_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="probe-", dir=config.node_dir))
    netns = directory / "netns"
    began = time.monotonic()
    try:
        await asyncio.to_thread(namespaces.make_netns, netns)
        bundle = _bundle(directory, netns, config.sbxd, _PROBE_IDS if runtime.needs_id_range else None)
        try:
            await asyncio.wait_for(_boot(runtime, bundle), DEADLINE_S)
        except TimeoutError:
            raise Refused(f"The sandbox did not answer within {DEADLINE_S:g} s.") from None
        finally:
            await asyncio.shield(runtime.delete(bundle.sandbox_id))
    finally:
        await asyncio.to_thread(namespaces.drop_netns, netns)
        await asyncio.to_thread(shutil.rmtree, directory, True)
    took_ms = (time.monotonic() - began) * 1000
    return Probe(runtime.name, True, f"{runtime.name} {version} booted a sandbox in {took_ms:.0f} ms")


async def _boot(runtime: Runtime, bundle: Bundle) -> None:
    channel = await runtime.start(bundle)
    try:
        header = b""
        while len(header) < _FRAME_HEADER_BYTES:
            data = await asyncio.get_running_loop().sock_recv(channel, _FRAME_HEADER_BYTES - len(header))
            if not data:
                raise Refused("The sandbox started and died before sbxd answered.")
            header += data
        if header[4] != _HELLO:
            raise Refused(f"sbxd's first frame is of type {header[4]}, not a greeting: it is of another version.")
    finally:
        channel.close()


def _bundle(directory: Path, netns: Path, sbxd: Path, ids: IdRange | None) -> Bundle:
    rootfs, workspace = directory / "root", directory / "workspace"
    for path in (rootfs, workspace):
        path.mkdir()
        if ids is not None:
            os.chown(path, ids.base, ids.base)
    directory.chmod(0o711)  # root of the sandbox's user namespace has to pass
    return Bundle(
        sandbox_id=new_sandbox_id(),
        directory=directory / "bundle",
        rootfs=rootfs,
        workspace=workspace,
        sbxd=sbxd,
        netns=netns,
        resolv_conf="",
        hostname="probe",
        limits=Limits(memory_mb=128, processes=64),
        id_range=ids,
    )
