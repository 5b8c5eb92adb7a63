"""What the same work costs without Skerry, on the same machine in the same run: the floors of the table."""

import json
import os
import pty
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


@contextmanager
def bare_bundle(runtime: str, rootfs: Path) -> Iterator["BareRuntime"]:
    """The runtime's own default bundle over `rootfs`, read-only, no network."""
    directory = Path(tempfile.mkdtemp(prefix="skerry-bench-"))
    try:
        yield BareRuntime(runtime, rootfs, directory)
    finally:
        shutil.rmtree(directory)


class BareRuntime:
    """`create`, `start`, `exec true` and `delete` of an OCI runtime, driven as its manual says."""

    def __init__(self, runtime: str, rootfs: Path, directory: Path) -> None:
        self._directory = directory
        self._runtime = runtime
        self._argv = [*_namespace(runtime), runtime, *_FLAGS[runtime], "--root", str(directory / "state")]
        subprocess.run([runtime, "spec"], cwd=directory, check=True, capture_output=True)
        config = json.loads((directory / "config.json").read_text())
        config["process"]["terminal"] = False
        config["process"]["args"] = ["/bin/sleep", "600"]
        config["root"] = {"path": str(rootfs), "readonly": True}
        (directory / "config.json").write_text(json.dumps(config))

    def cold_start_ms(self) -> float:
        """create + start + exec of `true`."""
        name = f"bare{os.getpid():08d}{time.monotonic_ns():020d}"
        begin = time.perf_counter()
        self._run("create", "--bundle", str(self._directory), name)
        self._run("start", name)
        self._run("exec", name, "/bin/true")
        elapsed = (time.perf_counter() - begin) * 1000
        self._run("kill", name, "KILL")
        self._run("delete", "--force", name)
        return elapsed

    @contextmanager
    def running(self) -> Iterator[str]:
        name = f"bare{os.getpid():08d}{time.monotonic_ns():020d}"
        self._run("create", "--bundle", str(self._directory), name)
        self._run("start", name)
        try:
            yield name
        finally:
            self._run("kill", name, "KILL")
            self._run("delete", "--force", name)

    def exec_ms(self, name: str) -> float:
        begin = time.perf_counter()
        self._run("exec", name, "/bin/true")
        return (time.perf_counter() - begin) * 1000

    def _run(self, *arguments: str) -> None:
        with (self._directory / "said").open("w+") as said:
            code = subprocess.run(
                [*self._argv, *arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            ).returncode
        if code:
            raise RuntimeError(
                f"{self._runtime} {arguments[0]} failed: {(self._directory / 'said').read_text()[-400:]}"
            )


_FLAGS: dict[str, list[str]] = {
    "runsc": ["--network=none", "--overlay2=none", "--ignore-cgroups"],
    "crun": [],
    "runc": [],
}


def _namespace(runtime: str) -> list[str]:
    """crun refuses hybrid cgroups: give it a mount namespace without the v2 half."""
    if runtime != "crun" or not Path("/sys/fs/cgroup/unified").is_dir():
        return []
    return ["nsenter", f"--mount=/proc/{_hybrid_free_namespace()}/ns/mnt"]


_holder: list[subprocess.Popen[bytes]] = []


def _hybrid_free_namespace() -> int:
    """The pid of a sleeping process whose mount namespace lacks /sys/fs/cgroup/unified."""
    if not _holder:
        _holder.append(
            subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", "umount /sys/fs/cgroup/unified; echo ready; exec sleep 3600"],
                stdout=subprocess.PIPE,
            )
        )
        assert _holder[0].stdout is not None
        _holder[0].stdout.readline()
    return _holder[0].pid


def close() -> None:
    """End the helper process of this module, if one was started."""
    while _holder:
        process = _holder.pop()
        process.kill()
        process.wait()


def loopback_mib_s(size: int) -> float:
    """One TCP connection over the loopback, Python on both ends, 256 KiB at a time: what no HTTP in Python can beat."""
    listener = socket.create_server(("127.0.0.1", 0))
    block = bytes(256 * 1024)

    def send() -> None:
        connection, _ = listener.accept()
        with connection:
            for _ in range(size // len(block)):
                connection.sendall(block)

    thread = threading.Thread(target=send)
    thread.start()
    buffer = bytearray(256 * 1024)
    begin = time.perf_counter()
    with socket.create_connection(listener.getsockname()) as connection:
        while connection.recv_into(buffer):
            pass
    elapsed = time.perf_counter() - begin
    thread.join()
    listener.close()
    return size / MIB / elapsed


@contextmanager
def pty_of_cat() -> Iterator[Callable[[], None]]:
    """Types a byte into a `cat` on a PTY of this host, and reads its echo."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["cat"], stdin=theirs, stdout=theirs, start_new_session=True)
    os.close(theirs)

    def type_one() -> None:
        os.write(ours, b"x")
        os.read(ours, 64)

    try:
        yield type_one
    finally:
        process.kill()
        process.wait()
        os.close(ours)
