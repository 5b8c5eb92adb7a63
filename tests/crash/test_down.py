"""What `skerry down` leaves: sandboxes that go on, or with --all nothing that runs and nothing that is mounted."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from acceptance.servers import eventually
from crash.instances import SETTLED_S, CrashServer
from node.leaks import held

from skerry import Skerry


@pytest.fixture
def own() -> Iterator[CrashServer]:
    """A server of its own: the tests' common one is not to be ended."""
    server = CrashServer("crun", name="down")
    server.prepare()
    server.start()
    with server.client() as client:
        for box in client.list():  # what a run that was cut short left
            box.destroy()
    yield server
    server.stop()


def down(server: CrashServer, *options: str) -> dict[str, object]:
    argv = [sys.executable, "-m", "skerry", "down", "-o", "json", *options]
    done = subprocess.run(argv, env=server.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    server.stop()  # it has ended; this takes notice
    return json.loads(done.stdout)


def test_f34_down_leaves_sandboxes_running_and_down_all_leaves_nothing(own: CrashServer) -> None:
    with own.client() as client:
        box = client.create()
        box.files.write("kept", "x")
        box.commands.run("sleep 600 >/dev/null 2>&1 &")
    assert down(own)["sandboxes_left_running"] == 1
    own.start()
    with own.client() as client:
        assert client.get(box.id).commands.run("busybox pidof sleep").exit_code == 0
    assert down(own, "--all")["sandboxes_left_running"] == 0
    left = held(own.config)
    assert (left.processes, left.mounts) == ((), ())
    own.start()
    with own.client() as client:
        told = ("stopped", "host_restart")
        eventually("it is stopped", lambda: _state(client, box.id) == told, within_s=SETTLED_S, every_s=0.1)
        assert client.get(box.id).files.read("kept") == b"x"
        client.get(box.id).destroy()


def _state(client: Skerry, sandbox_id: str) -> tuple[str, str | None]:
    info = client.get(sandbox_id).info
    return info.status, info.reason
