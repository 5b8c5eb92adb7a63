"""What sandboxes use, on a real node: what they do is counted, and the history outlives the node."""

import asyncio
import os
import signal
import struct
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node.harness import Node, create, run, until

from skerry.model.ids import SandboxId
from skerry.model.metrics import Sample
from skerry.model.sandbox import NetworkMode

pytestmark = pytest.mark.runtime


@pytest.fixture(params=["crun", "runsc"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(request.param)
    await node.start()
    yield node
    await node.close()


async def now(node: Node, sandbox_id: SandboxId) -> Sample:
    told = (await node.provider.metrics(sandbox_id)).now
    assert told is not None
    return told


SEND = """
#include <arpa/inet.h>
int main(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = inet_addr("10.255.255.1")};
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    for (int i = 0; i < 40; i++) sendto(s, (char[1000]){0}, 1000, 0, (void *)&to, sizeof to);
}
"""


def _add_sender(node: Node) -> None:
    """A program of the template that sends 40 datagrams of 1000 bytes to where nobody answers."""
    command = ["musl-gcc", "-static", "-x", "c", "-o", str(node.home / "tiny" / "bin" / "send"), "-"]
    subprocess.run(command, input=SEND.encode(), check=True)


async def test_f17_what_a_sandbox_does_is_counted(node: Node) -> None:
    _add_sender(node)
    sandbox_id, guest = await create(node.provider, network_mode=NetworkMode.BRIDGE)
    before = await now(node, sandbox_id)
    work = "dd if=/dev/urandom of=/workspace/f bs=1M count=8 2>/dev/null; for i in $(seq 100000); do :; done"
    assert (await run(guest, work))[0].code == 0
    await run(guest, "send")
    os.sync()  # disk use is as of the file system's last commit

    async def written() -> bool:
        told = (await now(node, sandbox_id)).disk_bytes
        return told is not None and told >= 8 << 20

    await until(written, "the file is charged")
    after = await now(node, sandbox_id)
    assert after.cpu_ms >= before.cpu_ms + 50
    assert after.disk_bytes is not None and after.disk_bytes < 64 << 20
    assert after.memory_bytes + after.memory_cache_bytes <= 256 << 20
    # Whatever becomes of it. The sandbox sends more than it hears.
    assert 40_000 <= after.network_tx_bytes - before.network_tx_bytes < 60_000
    assert after.network_rx_bytes - before.network_rx_bytes < 20_000
    assert after.processes > 0


async def test_memory_and_processes_follow_what_runs(node: Node) -> None:
    sandbox_id, guest = await create(node.provider)
    before = await now(node, sandbox_id)
    hold = "head -c 50000000 /dev/zero > /dev/shm/f; for i in 1 2 3 4 5; do sleep 60 & done; echo up; wait"
    running = asyncio.ensure_future(run(guest, hold))

    async def grown() -> bool:
        after = await now(node, sandbox_id)
        return after.memory_bytes > before.memory_bytes + (40 << 20) and after.processes >= before.processes + 3

    try:
        await until(grown, "memory and processes are counted")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_history_outlives_the_node_and_goes_with_the_sandbox(node: Node) -> None:
    sandbox_id, _ = await create(node.provider)

    async def sampled() -> bool:
        return len((await node.provider.metrics(sandbox_id)).history) >= 1

    await until(sampled, "the first sample")
    (first, *_) = (await node.provider.metrics(sandbox_id)).history
    node.kill(signal.SIGKILL)
    await node.start()
    told = await node.provider.metrics(sandbox_id)
    assert told.history[0] == first and told.now is not None
    files = node.home / "node" / "samples"
    assert [path.name for path in files.iterdir()] == [f"{sandbox_id}.samples"]
    assert (files.stat().st_mode & 0o777, next(files.iterdir()).stat().st_mode & 0o777) == (0o700, 0o600)
    assert _first_slot(files / f"{sandbox_id}.samples")
    await node.provider.destroy(sandbox_id)
    await until(lambda: not list(files.iterdir()), "the file is gone")


def _first_slot(path: Path) -> bool:
    raw = path.read_bytes()
    return any(at for (at, *_) in struct.iter_unpack("<8Q", raw[: len(raw) // 64 * 64]))
