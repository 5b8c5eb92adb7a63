"""What coming back costs: stop, resume, fork, archive, restore; at 20 MB and at 0.8 GB in 40,000 files."""

import asyncio
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.rows import Row, percentile, row
from bench.server import TEMPLATE, BenchServer
from skerry import Sandbox, Skerry
from skerry.model.ids import TreeId
from skerry.providers.local import LocalProvider

SMALL, LARGE = 1_000, 40_000  # files of 20 KB
MB = 1_000_000
# Half of it compresses: what people keep is neither all text nor all noise.
FILL = """
import os
text = b"def function(argument):\\n    return argument\\n" * 230
for n in range({count}):
    if n % 100 == 0: os.makedirs("/workspace/tree/%d" % (n // 100), exist_ok=True)
    with open("/workspace/tree/%d/%d" % (n // 100, n), "wb") as file: file.write(os.urandom(10_000) + text[:10_000])
"""


def lifecycle(server: BenchServer) -> Iterator[Row]:
    """Stop and resume, and forks, beside a cold create; each at two sizes."""
    with server.client() as client:
        cold = [_cold(client) for _ in range(15)]
        forks: dict[int, list[float]] = {}
        for count, size in ((SMALL, "20 MB"), (LARGE, "0.8 GB")):
            with _filled(client, count) as box:
                forks[count] = [_fork(box) for _ in range(9)]
                stops: list[float] = []
                resumes: list[float] = []
                for _ in range(9):
                    stops.append(asyncio.run(_freed_ms(server, box)))
                    box.stop(wait=600)  # until it is archived, which is not what is measured here
                    resumes.append(_ms(lambda b=box: (b.resume(), b.commands.run(["true"]))))
            yield row(f"stop of {size}: compute freed", server.runtime, stops, "ms", at_most=150)
            name = f"resume of {size} → first result"
            yield row(name, server.runtime, resumes, "ms", floor=cold, at_most_ratio=1.25)
        name = "fork of 0.8 GB → first result"
        yield row(name, server.runtime, forks[LARGE], "ms", floor=cold, at_most_ratio=1.25)
        yield row(f"{name}, to 20 MB", server.runtime, forks[LARGE], "ms", floor=forks[SMALL], at_most_ratio=2)


def archives(server: BenchServer) -> Iterator[Row]:
    """The first archive of 0.8 GB, the second after 1 MB has changed, the restore beside `tar`."""
    with server.client() as client, _filled(client, LARGE) as box:
        idle = _neighbour(client, lambda: time.sleep(4))
        first: list[float] = []
        busy = _neighbour(client, lambda: first.append(_seconds(lambda: box.stop(wait=600))))
        archive = box.refresh().info.archive
        assert archive is not None
        size_mb = archive.size_bytes / MB
        box.resume()
        box.commands.run("for n in $(seq 50); do head -c 20000 /dev/urandom > tree/$n/changed; done")
        second = _seconds(lambda: box.stop(wait=600))
        again = box.refresh().info.archive
        assert again is not None
        restores: list[float] = []
        for _ in range(3):
            asyncio.run(_drop(server, box))
            restores.append(_seconds(box.resume))
            box.stop(wait=600)
        box.resume()
        tars = [_tar_s(server, box) for _ in range(3)]
    yield row("first archive of 0.8 GB", server.runtime, [size_mb / first[0]], "MB/s", at_least=80)
    yield row("second archive, 1 MB changed", server.runtime, [second], "s", at_most=1)
    yield row("second archive, sent", server.runtime, [again.stored_bytes / MB], "MB", at_most=1.5)
    rates = [size_mb / each for each in restores]
    yield row("restore of 0.8 GB", server.runtime, rates, "MB/s", at_least=80)
    yield row("restore of 0.8 GB, to tar", server.runtime, restores, "s", floor=tars, at_most_ratio=2.5)
    name = "exec p99 beside an archive, to idle"
    yield row(name, server.runtime, [percentile(busy, 0.99)], "ms", floor=[percentile(idle, 0.99)], at_most_ratio=3)


def _filled(client: Skerry, count: int) -> Sandbox:
    box = client.create(TEMPLATE, disk_mb=4096, memory_mb=1024)
    result = box.commands.run(["python3", "-"], stdin=FILL.format(count=count), timeout_s=600)
    assert result.exit_code == 0, result.stderr
    return box


def _cold(client: Skerry) -> float:
    begin = time.perf_counter()
    box = client.create(TEMPLATE)
    box.commands.run(["true"])
    taken = (time.perf_counter() - begin) * 1000
    box.destroy()
    return taken


def _fork(box: Sandbox) -> float:
    begin = time.perf_counter()
    copy = box.fork()
    copy.commands.run(["true"])
    taken = (time.perf_counter() - begin) * 1000
    copy.destroy()
    return taken


def _neighbour(client: Skerry, act: Callable[[], object]) -> list[float]:
    """How long each of another sandbox's commands took while `act` was done."""
    taken: list[float] = []
    with client.create(TEMPLATE) as other:
        other.commands.run(["true"])
        thread = threading.Thread(target=act)
        thread.start()
        while thread.is_alive():
            taken.append(_ms(lambda: other.commands.run(["true"])))
        thread.join()
    assert statistics.median(taken) > 0
    return taken


async def _freed_ms(server: BenchServer, box: Sandbox) -> float:
    """From the call to the moment when the node says that nothing of it runs any more."""
    provider = LocalProvider(server.config.node_socket)
    try:
        await provider.list()
        begin = time.perf_counter()
        await asyncio.to_thread(box.stop, wait=False)
        while not any(seen.id == box.id and seen.stopped for seen in await provider.list()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return (time.perf_counter() - begin) * 1000
    finally:
        await provider.close()


async def _drop(server: BenchServer, box: Sandbox) -> None:
    provider = LocalProvider(server.config.node_socket)
    try:
        await provider.drop(TreeId(box.id))
    finally:
        await provider.close()


def _tar_s(server: BenchServer, box: Sandbox) -> float:
    """Unpacking the same tree from a tar file, into the same pool."""
    source = server.config.pool_dir / "sandboxes" / box.id / "workspace"
    with tempfile.TemporaryDirectory() as where, tempfile.TemporaryDirectory(dir=server.config.pool_dir) as into:
        file = Path(where) / "tree.tar"
        subprocess.run(["tar", "-C", source, "-cf", file, "tree"], check=True)
        os.sync()
        return _seconds(lambda: subprocess.run(["tar", "-C", into, "-xf", file], check=True))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _ms(call: Callable[[], object]) -> float:
    return _seconds(call) * 1000
