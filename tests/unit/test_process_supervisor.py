"""The supervisor, with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PARENT = """
import os, sys
from skerry.supervisor import Child, supervise
env = {**os.environ, "SKERRY_SUPERVISOR": str(os.getpid())}
supervise([Child(name, [sys.executable, "-c", sys.argv[1], name], env) for name in ("first", "second")])
"""
# A part says that it lives, with its pid, and how it ended.
PART = """
import os, signal, sys, time
from skerry.supervisor import become_child
become_child()
def end(*_):
    open(sys.argv[1] + ".ended", "w").write(str(time.monotonic()))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.replace(sys.argv[1] + ".new", sys.argv[1])
while True:
    time.sleep(60)
"""


def wait_for(what: str, holds) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", PARENT, PART], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for("both parts live", lambda: all((tmp_path / name).exists() for name in ("first", "second")))
        yield process
    finally:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pid_of(path: Path) -> int:
    return int(path.read_text())


def test_what_dies_is_started_again_and_the_other_is_left_alone(
    supervisor: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    first, second = pid_of(tmp_path / "first"), pid_of(tmp_path / "second")
    os.kill(first, signal.SIGKILL)
    wait_for("a new process", lambda: pid_of(tmp_path / "first") != first)
    assert pid_of(tmp_path / "second") == second
    assert supervisor.poll() is None


def test_sigterm_ends_the_parts_last_one_first(supervisor: subprocess.Popen[bytes], tmp_path: Path) -> None:
    supervisor.terminate()
    assert supervisor.wait(15) == 0
    first, second = (float((tmp_path / f"{name}.ended").read_text()) for name in ("first", "second"))
    assert second <= first


def test_the_parts_die_with_a_killed_supervisor(supervisor: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pids = [pid_of(tmp_path / name) for name in ("first", "second")]
    supervisor.kill()
    supervisor.wait()
    wait_for("nobody is left", lambda: not any(alive(pid) for pid in pids))
    assert not (tmp_path / "first.ended").exists()


def test_a_chore_is_done_again_when_it_wants_to(tmp_path: Path) -> None:
    chore = (
        "from pathlib import Path\n"
        "def chore():\n"
        "    with Path('chores').open('a') as file: file.write('x')\n"
        "    return 0.02\n"
    )
    parent = PARENT.replace('("first", "second")])', '("first", "second")], chore)')
    process = subprocess.Popen([sys.executable, "-c", chore + parent, PART], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for("it was done three times", lambda: len(read(tmp_path / "chores")) >= 3)
        wait_for("a part lives", (tmp_path / "first").exists)
        first = pid_of(tmp_path / "first")
        os.kill(first, signal.SIGKILL)
        wait_for("a dead part is started all the same", lambda: pid_of(tmp_path / "first") != first)
    finally:
        process.terminate()
        process.wait(30)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
