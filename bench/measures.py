"""The measurements, one function each: given a running server, they return rows. Order and choice are `__main__`'s."""

import base64
import io
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from bench import floors, lifecycle
from bench.rows import Row, row
from bench.server import TEMPLATE, BenchServer
from skerry import Sandbox

MIB = 1 << 20
SIZE = 100 * MIB


def cold_create(server: BenchServer) -> Iterator[Row]:
    """create → first command's result, beside the bare runtime's create + start + exec; the two in turn."""
    limit = {"crun": 1.5, "runc": 1.5, "runsc": 1.25}[server.runtime]
    ours: list[float] = []
    bare: list[float] = []
    with server.client() as client, floors.bare_bundle(server.runtime, server.template_root(TEMPLATE)) as runtime:
        for _ in range(20):
            bare.append(runtime.cold_start_ms())
            begin = time.perf_counter()
            sandbox = client.create(TEMPLATE)
            sandbox.commands.run(["true"])
            ours.append((time.perf_counter() - begin) * 1000)
            sandbox.destroy()
    yield row("cold create → first result", server.runtime, ours, "ms", floor=bare, at_most_ratio=limit)


def command(server: BenchServer) -> Iterator[Row]:
    """`true`, the whole client call over a kept connection, beside the runtime's own exec."""
    limit = {"crun": 2.5, "runc": 2.5, "runsc": 12.0}[server.runtime]
    with server.client() as client, client.create(TEMPLATE) as sandbox:
        with floors.bare_bundle(server.runtime, server.template_root(TEMPLATE)) as runtime, runtime.running() as name:
            bare = [runtime.exec_ms(name) for _ in range(20)]
        for _ in range(20):
            sandbox.commands.run(["true"])
        ours = [_ms(lambda: sandbox.commands.run(["true"])) for _ in range(300)]
        beat = [_ms(lambda: client.get(sandbox.id)) for _ in range(300)]
    yield row("true (argv), client call", server.runtime, ours, "ms", floor=bare, at_most=limit)
    yield row("GET sandbox, client call", server.runtime, beat, "ms")


def get_rate(server: BenchServer) -> Iterator[Row]:
    """`GET /v1/sandboxes/{id}` as fast as one API process answers, and the processor time that each answer takes it.

    The client shares the cores with it. The time is what a busy machine does not change.
    """
    rates: list[float] = []
    times: list[float] = []
    with server.client() as client, client.create(TEMPLATE, env={"TOKEN": "x" * 40}) as sandbox:
        where = urlsplit(server.url)
        asked = [str(where.hostname), str(where.port), f"/v1/sandboxes/{sandbox.id}", server.key, "16", "3"]
        for _ in range(5):
            before = server.server_cpu_s()
            answers = int(subprocess.check_output([sys.executable, "-m", "bench.load", *asked]))
            rates.append(answers / 3)
            times.append((server.server_cpu_s() - before) * 1000 / answers)
    yield row("GET sandbox, one process", server.runtime, rates, "/s", at_least=2000)
    yield row("GET sandbox, processor time", server.runtime, times, "ms", at_most=0.5)


def transfer(server: BenchServer) -> Iterator[Row]:
    """A 100 MB file up and down, beside one plain TCP stream over the loopback.

    Up twice: as a new file, and in place of one. The pool's btrfs writes out what takes a file's place when it does so,
    lest a loss of power leave neither; a new file it writes out later.
    """
    limit = {"crun": 400.0, "runc": 400.0, "runsc": 150.0}[server.runtime]
    plain = [floors.loopback_mib_s(SIZE) for _ in range(5)]
    block = bytes(MIB)
    new: list[float] = []
    replacing: list[float] = []
    down: list[float] = []
    with server.client() as client, client.create(TEMPLATE) as sandbox:
        for _ in range(7):
            for rates in (new, replacing):
                taken = _seconds(lambda: sandbox.files.write_stream("big", (block for _ in range(SIZE // MIB))))
                rates.append(SIZE / MIB / taken)
            down.append(SIZE / MIB / _seconds(lambda: _read(sandbox, "big")))
            sandbox.files.remove("big")
    yield row("100 MB file up", server.runtime, new, "MB/s", floor=plain, at_least=limit)
    yield row("100 MB file up, replacing one", server.runtime, replacing, "MB/s", floor=plain, at_least=limit)
    yield row("100 MB file down", server.runtime, down, "MB/s", floor=plain, at_least=limit)


def many_files(server: BenchServer) -> Iterator[Row]:
    """500 files of 4 KB in one call: by the client, as a bare tar stream, and as JSON, which becomes one.

    New files, then the same again in their places.
    """
    with server.client() as client, client.create(TEMPLATE) as sandbox, _speaking(server, sandbox) as http:

        def by_client(contents: dict[str, bytes]) -> float:
            return _ms(lambda: sandbox.files.write_many(contents))

        def as_tar(contents: dict[str, bytes]) -> float:
            tree = _tar(contents)
            return _ms(lambda: _put(http, "files/tar", 500, content=tree))

        def as_json(contents: dict[str, bytes]) -> float:
            files = [
                {"path": path, "content_base64": base64.b64encode(data).decode()} for path, data in contents.items()
            ]
            return _ms(lambda: _put(http, "files/batch", 500, json={"files": files}))

        for name, write in (("client", by_client), ("tar", as_tar), ("JSON", as_json)):
            new: list[float] = []
            replacing: list[float] = []
            for turn in range(15):
                contents = {f"{name}{turn}/d{n % 10}/{n}": os.urandom(4096) for n in range(500)}
                new.append(write(contents))
                replacing.append(write(contents))
                sandbox.files.remove(f"{name}{turn}", recursive=True)
            yield row(f"500 × 4 KB in one call ({name})", server.runtime, new, "ms", at_most=150)
            yield row(f"500 × 4 KB, replacing ({name})", server.runtime, replacing, "ms", at_most=150)


def imports(server: BenchServer) -> Iterator[Row]:
    """`import skerry` in a fresh Python, and the client with all that it needs, above a Python that imports nothing."""
    plain = [_ms(lambda: _python("pass")) for _ in range(9)]
    bare = statistics.median(plain)
    light = [max(0.0, _ms(lambda: _python("import skerry")) - bare) for _ in range(9)]
    client = [max(0.0, _ms(lambda: _python("from skerry import Skerry")) - bare) for _ in range(9)]
    yield row("import skerry", server.runtime, light, "ms", at_most=150)
    yield row("from skerry import Skerry", server.runtime, client, "ms")


def _python(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def _tar(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in contents.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _speaking(server: BenchServer, sandbox: Sandbox) -> httpx2.Client:
    url = (server.config.run_dir / "api.url").read_text().strip()
    key = (server.config.home / "key").read_text().strip()
    return httpx2.Client(base_url=f"{url}/v1/sandboxes/{sandbox.id}/", headers={"X-API-Key": key}, timeout=60)


def _put(http: httpx2.Client, route: str, count: int, **body: Any) -> None:
    answer = http.put(route, **body)
    assert answer.status_code == 200 and answer.json()["count"] == count, answer.text


def terminal(server: BenchServer) -> Iterator[Row]:
    """One byte typed into a terminal through its WebSocket until its echo is shown, beside a PTY of this host."""
    import httpx2
    from websockets.sync.client import connect

    with server.client() as client, client.create(TEMPLATE) as sandbox:
        headers = {"Authorization": f"Bearer {server.key}"}
        path = f"/v1/sandboxes/{sandbox.id}/terminals"
        answer = httpx2.post(f"{server.url}{path}", json={"argv": ["cat"]}, headers=headers)
        address = f"{server.url.replace('http', 'ws', 1)}{path}/{answer.json()['id']}/ws"
        with connect(address, additional_headers=headers, compression=None) as socket:
            socket.recv()

            def type_one() -> None:
                socket.send(b"x")
                socket.recv()

            for _ in range(20):
                type_one()
            ours = [_ms(type_one) for _ in range(500)]
    with floors.pty_of_cat() as type_here:
        bare = [_ms(type_here) for _ in range(500)]
    yield row("terminal, keystroke echo", server.runtime, ours, "ms", floor=bare, at_most=5.0)


def memory(server: BenchServer) -> Iterator[Row]:
    """Proportional set sizes: of sbxd, and what API and node grow by for each idle sandbox."""
    count = 20
    with server.client() as client:
        with client.create(TEMPLATE) as sandbox:
            sandbox.commands.run(["true"])
            before = server.server_pss_mb()
            sandboxes = [client.create(TEMPLATE) for _ in range(count)]
            for one in sandboxes:
                one.commands.run(["true"])
            time.sleep(1)
            grown = (server.server_pss_mb() - before) / count
            resident = _sbxd_rss_mb(server)
        for one in sandboxes:
            one.destroy()
    yield row("API + node memory per idle sandbox", server.runtime, [grown], "MB", at_most=0.3)
    if resident:
        yield row("sbxd resident", server.runtime, resident, "MB", at_most=1.0)


def _sbxd_rss_mb(server: BenchServer) -> list[float]:
    """Of every sbxd this server runs that the host can see as a process (not under runsc), its keepers with it."""
    found: list[float] = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if (status.parent / "comm").read_text().strip() != "sbxd":
                continue
            cgroup = (status.parent / "cgroup").read_text()
            rollup = (status.parent / "smaps_rollup").read_text()
        except OSError:
            continue
        if server.instance in cgroup:
            found.append(_field_kib(rollup, "Rss") / 1024)
    return found


def _field_kib(text: str, name: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + ":"))


def _read(sandbox: Sandbox, path: str) -> None:
    with sandbox.files.read_stream(path) as chunks:
        for _ in chunks:
            pass


def _ms(call: Callable[[], object]) -> float:
    return _seconds(call) * 1000


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def cli_help(server: BenchServer) -> Iterator[Row]:
    """`skerry --help` and `import skerry`, each a process of its own, beside Python that does nothing."""
    programs = {
        "floor": ["-c", ""],
        "skerry --help": ["-m", "skerry", "--help"],
        "import skerry": ["-c", "import skerry"],
    }
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(20):
        for name, words in programs.items():
            run = [sys.executable, *words]
            taken[name].append(_ms(lambda run=run: subprocess.run(run, stdout=subprocess.DEVNULL, check=True)))
    floor = taken["floor"]
    yield row("skerry --help", server.runtime, taken["skerry --help"], "ms", floor=floor, at_most=300)
    yield row("import skerry", server.runtime, taken["import skerry"], "ms", floor=floor, at_most=150)


MEASURES: dict[str, Callable[[BenchServer], Iterator[Row]]] = {
    "cold_create": cold_create,
    "command": command,
    "get_rate": get_rate,
    "transfer": transfer,
    "many_files": many_files,
    "import": imports,
    "terminal": terminal,
    "memory": memory,
    "cli_help": cli_help,
    "lifecycle": lifecycle.lifecycle,
    "archives": lifecycle.archives,
}
