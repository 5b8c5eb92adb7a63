"""A server for each runtime that is measured, in turn, in one home that is kept, so that its template is built once.

The home is SKERRY_BENCH_HOME, else under /var/tmp by the place of this clone. What is measured is this tree: its sbxd
is built, and the server runs the `skerry` that this Python imports.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry import Skerry
from skerry.config import Config
from skerry.node.runtimes import pin_file
from skerry.serve import environment

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
TEMPLATE = "python"


@dataclass(frozen=True)
class BenchServer:
    """A running server. `pids` are its supervisor's children: API and node."""

    runtime: str
    config: Config
    supervisor: int

    @property
    def instance(self) -> str:
        return self.config.instance

    @property
    def url(self) -> str:
        return (self.config.run_dir / "api.url").read_text().strip()

    @property
    def key(self) -> str:
        return (self.config.home / "key").read_text().strip()

    def client(self) -> Skerry:
        return Skerry(self.url, self.key)

    def template_root(self, name: str) -> Path:
        """The built template's files on the host, for the bare runtime to run on."""
        with self.client() as client:
            digest = client.templates.get(name).digest
        assert digest is not None, f"the template {name} is not built"
        (root,) = (self.config.pool_dir / "images").glob(f"{digest.removeprefix('sha256:')[:32]}*/root")
        return root

    def server_pss_mb(self) -> float:
        """Proportional set size of API and node together."""
        return sum(_pss_kib(pid) for pid in _children(self.supervisor)) / 1024

    def server_cpu_s(self) -> float:
        """Processor time that API and node have used, in their own code and in the kernel for them."""
        return sum(_cpu_ticks(pid) for pid in _children(self.supervisor)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def bench_server(runtime: str) -> Iterator[BenchServer]:
    """Start a server with `runtime`, its template built."""
    config = Config(
        home=_home(),
        port=0,
        runtime=runtime,
        allow_shared_kernel=runtime != "runsc",
        pool_mb=8192,
        user=os.environ.get("SKERRY_BENCH_USER", "nobody"),
    )
    _place_sbxd(config)
    pin_file(config).unlink(missing_ok=True)  # the last server here ran another runtime
    url = config.run_dir / "api.url"
    url.unlink(missing_ok=True)
    log = config.home / "serve.log"
    env = {**os.environ, **environment(config)}
    with log.open("wb") as sink:
        process = subprocess.Popen([sys.executable, "-m", "skerry", "serve"], env=env, stdout=sink, stderr=sink)
    try:
        server = BenchServer(runtime, config, process.pid)
        _wait_ready(server, process, log)
        with server.client() as client:
            for _ in client.templates.build(TEMPLATE):
                pass  # ready already: ends at once
        yield server
    finally:
        process.terminate()
        process.wait(60)


def _home() -> Path:
    tag = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    home = Path(os.environ.get("SKERRY_BENCH_HOME") or f"/var/tmp/skerry-bench-{tag}")
    home.mkdir(mode=0o711, parents=True, exist_ok=True)
    return home


def _place_sbxd(config: Config) -> None:
    build = config.home / "build"
    subprocess.run(["make", "-C", str(ROOT / "sbxd"), f"BUILD={build}", "all"], check=True, capture_output=True)
    config.sbxd.parent.mkdir(exist_ok=True)
    fresh = config.sbxd.with_suffix(".new")
    shutil.copy2(build / "sbxd", fresh)
    fresh.replace(config.sbxd)


def _wait_ready(server: BenchServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with server.client() as client:
                client.capabilities()
                return
        except Exception:  # noqa: BLE001 - whatever keeps it from answering, the deadline ends the wait
            time.sleep(0.1)
    raise RuntimeError(f"The server did not come up:\n{log.read_text()[-3000:]}")


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])  # utime, stime


def _pss_kib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
