"""A server of its own for each runtime that is measured, in a home of its own, gone afterwards."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry import Skerry
from skerry.config import Config

START_S = 60.0


@dataclass(frozen=True)
class BenchServer:
    """A running server. `pids` are its supervisor's children: API and node."""

    runtime: str
    config: Config
    supervisor: int

    @property
    def instance(self) -> str:
        return self.config.instance

    def client(self) -> Skerry:
        url = (self.config.run_dir / "api.url").read_text().strip()
        return Skerry(url, (self.config.home / "key").read_text().strip())

    def template_root(self, name: str) -> Path:
        """The built template's files on the host, for the bare runtime to run on."""
        with self.client() as client:
            digest = client.templates.get(name).digest
        assert digest is not None
        found = [
            path
            for path in (self.config.pool_dir / "images").rglob("*")
            if path.name == "etc" and digest[:12] in str(path)
        ]
        return min(found, key=lambda path: len(path.parts)).parent

    def server_pss_mb(self) -> float:
        """Proportional set size of API and node together."""
        return sum(_pss_kib(pid) for pid in _children(self.supervisor)) / 1024


@contextmanager
def bench_server(runtime: str) -> Iterator[BenchServer]:
    """Start a server with `runtime`."""
    home = Path(tempfile.mkdtemp(prefix=f"skerry-bench-{runtime}-"))
    home.chmod(0o711)
    env = {
        **os.environ,
        "SKERRY_HOME": str(home),
        "SKERRY_PORT": "0",
        "SKERRY_RUNTIME": runtime,
        "SKERRY_ALLOW_SHARED_KERNEL": "true" if runtime != "runsc" else "false",
    }
    config = Config(home=home, port=0, runtime=runtime, allow_shared_kernel=runtime != "runsc")
    _place_sbxd(config)
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "skerry", "serve"], env=env, stdout=log, stderr=log)
    try:
        server = BenchServer(runtime, config, process.pid)
        _wait_ready(server, process, home / "server.log")
        yield server
    finally:
        subprocess.run([sys.executable, "-m", "skerry", "down"], env=env, check=False, capture_output=True)
        process.wait(60)
        # A pool outlives its server, for the next start. Nothing of this one may stay.
        subprocess.run(["umount", str(config.pool_dir)], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _place_sbxd(config: Config) -> None:
    """Build sbxd out of the tree, which `up` does for a user's home."""
    build = config.home / "sbxd"
    make = ["make", "-C", str(Path(__file__).parents[1] / "sbxd"), f"BUILD={build}", "all"]
    subprocess.run(make, check=True, capture_output=True)
    config.sbxd.parent.mkdir()
    shutil.copy2(build / "sbxd", config.sbxd)


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


def _pss_kib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
