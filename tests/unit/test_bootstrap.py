"""The script `skerry` of the clone: its functions, run by bash; no package is installed and no server started."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "skerry"
# All of the script but what it does with its arguments.
FUNCTIONS = SCRIPT.read_text().rpartition("\ncase ${1:-} in")[0].replace('$(readlink -f -- "$0")', str(SCRIPT))


def bash(home: Path, code: str, **environ: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
    return subprocess.Popen(
        ["bash", "-c", f"{FUNCTIONS}\nLOG=$STATE/install.log\n{code}"],
        env={**kept, "SKERRY_HOME": str(home), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
    )


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 15
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.01)
    return path.read_text().strip()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def working(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The script in the middle of a step whose child waits, too."""
    work = "work() { sleep 60 & echo $! >child.new; mv child.new child; wait; }"
    process = bash(tmp_path, f"{work}\nstep 'work for long' work")
    wait_for(tmp_path / "child")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_step_with_all_its_processes(
    working: subprocess.Popen[str], tmp_path: Path, number: int, code: int
) -> None:
    child = int((tmp_path / "child").read_text())
    working.send_signal(number)
    _, err = working.communicate(timeout=15)
    assert working.returncode == code
    assert err == "skerry: interrupted. Running this again goes on where it stopped.\n"
    deadline = time.monotonic() + 5
    while alive(child):
        assert time.monotonic() < deadline, "a process of the step goes on"
        time.sleep(0.01)


def test_an_interrupt_lets_the_package_manager_end_what_it_has_begun(tmp_path: Path) -> None:
    work = "install_packages() { echo >begun; until [ -e go ]; do sleep 0.02; done; echo >ended; }"
    process = bash(tmp_path, f"{work}\nstep 'install packages' install_packages")
    wait_for(tmp_path / "begun")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "waiting for the package manager" in process.stderr.readline()
    (tmp_path / "go").touch()
    process.communicate(timeout=15)
    assert process.returncode == 130
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("content", "environ", "user"),
    [
        ("", {}, "skerry"),
        ("user = 'other'", {}, "other"),
        ("user = 'other'", {"SKERRY_USER": "third"}, "third"),
        ("user = [", {}, "skerry"),
        (None, {}, "skerry"),
    ],
    ids=["default", "file", "environment", "broken file", "no file"],
)
def test_the_user_that_is_made_is_the_one_that_the_settings_name(
    tmp_path: Path, content: str | None, environ: dict[str, str], user: str
) -> None:
    if content is not None:
        (tmp_path / "config.toml").write_text(content)
    out, err = bash(tmp_path, "api_user", **environ).communicate(timeout=15)
    assert (out, err) == (f"{user}\n", "")


def test_a_relative_home_is_the_same_for_the_server(tmp_path: Path) -> None:
    out, _ = bash(tmp_path, 'echo "$STATE"', SKERRY_HOME="here").communicate(timeout=15)
    assert out == f"{tmp_path}/here\n"
