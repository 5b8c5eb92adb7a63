"""Real servers for the acceptance tests: started as a user starts them, seen through /proc and the public client.

One home directory a runtime, kept between sessions so that templates are built once: under SKERRY_TEST_HOME, else
under /var/tmp by the place of this clone.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from skerry import Skerry, instance
from skerry.config import Config

ROOT = Path(__file__).resolve().parents[2]
READY_S = 30.0


def eventually(what: str, holds: Callable[[], object], *, within_s: float = 10.0, every_s: float = 0.02) -> None:
    """Wait until `holds()` is true. Fails with `what` when it does not become true in time."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(every_s)


def test_home() -> Path:
    """Where the homes of test servers lie. World-traversable: the API's user has to pass."""
    tag = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    home = Path(os.environ.get("SKERRY_TEST_HOME") or f"/var/tmp/skerry-test-{tag}")
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    return home


test_home.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


class Server:
    """`skerry serve` on one runtime, on a free port. The names of parts: `supervisor`, `node`, `api`."""

    def __init__(self, runtime: str) -> None:
        self.runtime = runtime
        self.config = Config(
            home=test_home() / runtime,
            port=0,
            runtime=runtime,
            allow_shared_kernel=runtime != "runsc",
            pool_mb=8192,
            user=os.environ.get("SKERRY_TEST_USER", "nobody"),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.log = self.config.home / "serve.log"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        from skerry.serve import environment

        self.config.home.mkdir(parents=True, exist_ok=True)
        self._place_sbxd()
        instance.url_file(self.config).unlink(missing_ok=True)
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skerry", "serve"],
                env={**os.environ, **environment(self.config)},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd="/",
            )
        eventually("the server says where it listens", self._listening, within_s=READY_S)
        # The next start takes the same port, so that clients find it again.
        self.config = self.config.model_copy(update={"port": urlsplit(self.url).port})
        with self.client(timeout_s=3, retries=0) as client:
            eventually("the server answers", lambda: _answers(client), within_s=READY_S)

    def stop(self) -> None:
        """End it as `skerry down` does."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"the server did not end on SIGTERM; its log:\n{self.tail()}") from None

    def kill(self, part: str) -> int:
        """`kill -9` one part; its pid then. Killing the supervisor takes the others along."""
        pid = self.pid(part)
        os.kill(pid, signal.SIGKILL)
        if part == "supervisor" and self._process is not None:
            self._process.wait()
        return pid

    def restarted(self, part: str, old: int) -> None:
        """Wait until `part` has another pid than `old`, and the server answers."""
        eventually(f"{part} is started again", lambda: self._pids().get(part, old) != old, within_s=READY_S)
        with self.client(timeout_s=3, retries=0) as client:
            eventually("the server answers again", lambda: _answers(client), within_s=READY_S)

    def pid(self, part: str) -> int:
        """The pid of a part that runs."""
        eventually(f"{part} runs", lambda: part in self._pids())
        return self._pids()[part]

    def memory_of(self, part: str) -> int:
        """Bytes that a part has for itself (PSS), its descendants left out."""
        for line in Path(f"/proc/{self.pid(part)}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no Pss in smaps_rollup")

    def client(self, **options: float) -> Skerry:
        return Skerry(self.url, self.key, **options)  # pyright: ignore[reportArgumentType]

    @property
    def url(self) -> str:
        return instance.url(self.config)

    @property
    def key(self) -> str:
        return instance.key(self.config)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a client's process: as `skerry client-env` gives it, with `skerry` in PATH."""
        return {
            **os.environ,
            "SKERRY_HOME": str(self.config.home),
            "SKERRY_URL": self.url,
            "SKERRY_API_KEY": self.key,
            "FLAX_BASE_URL": self.url,
            "FLAX_API_KEY": self.key,
            "PATH": f"{_programs()}:{os.environ['PATH']}",
        }

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def _listening(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"the server ended at its start; its log:\n{self.tail()}")
        return instance.url_file(self.config).exists() and instance.key_file(self.config).exists()

    def _pids(self) -> dict[str, int]:
        supervisor = instance.running_pid(self.config)
        if supervisor is None:
            return {}
        found = {"supervisor": supervisor}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == supervisor and b"skerry.serve" in words:
                found[words[words.index(b"skerry.serve") + 1].decode()] = int(entry.name)
        return found

    def _place_sbxd(self) -> None:
        self.config.sbxd.parent.mkdir(exist_ok=True)
        fresh = self.config.sbxd.with_suffix(".new")
        shutil.copy2(os.environ["SBXD_BINARY"], fresh)
        fresh.replace(self.config.sbxd)


def _answers(client: Skerry) -> bool:
    from skerry import SkerryError

    try:
        client.capabilities()
    except SkerryError:
        return False
    return True


def _programs() -> str:
    """A directory whose `skerry` is this Python's."""
    where = Path(tempfile.gettempdir()) / f"skerry-programs-{os.getpid()}"
    where.mkdir(exist_ok=True)
    program = where / "skerry"
    if not program.exists():
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m skerry "$@"\n')
        program.chmod(0o755)
    return str(where)
