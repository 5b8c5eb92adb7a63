"""The script `skerry` on hosts of all kinds: what it makes of them, and what it says when it cannot go on.

Its functions are run on their own; no package is installed and no server started.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "skerry").read_text()
PIECES = SCRIPT[: SCRIPT.index("\ncase ${1:-} in")].replace("$(dirname", f"{ROOT} #$(dirname")
ADMIN = os.environ["PATH"]


def bash(snippet: str, home: Path, **environ: str) -> subprocess.Popen[str]:
    """Everything that the script defines, then `snippet`, with a log under `home`."""
    (home / "log").mkdir(exist_ok=True)
    text = f'{PIECES}\nSTATE={home}; LOG={home}/log/install.log; VENV={home}/venv; : >"$LOG"\n{snippet}\n'
    env = {"PATH": ADMIN, "HOME": str(home), **environ}
    return subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def run(snippet: str, home: Path, **environ: str) -> tuple[int, str, str]:
    process = bash(snippet, home, **environ)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("E: Could not get lock /var/lib/dpkg/lock-frontend", "another package manager is at work"),
        ("Temporary failure resolving 'deb.debian.org'", "the network, or a mirror, cannot be reached"),
        ("<pip>: Failed to establish a new connection: [Errno 101] Network is unreachable", "the network, or a mirror"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]\\nERROR: No matching distribution found for x", "certificate of a server"),
        ("E: Unable to locate package runsc", "mirrors in apt's sources"),
        ("ERROR: No matching distribution found for uvloop==0.23.0", "has not what pyproject.toml pins"),
        ("cc1: No space left on device", "the disk is full"),
        ("something nobody has seen", "Running this again goes on where it stopped"),
    ],
)
def test_a_step_that_fails_says_why_and_what_to_do(said: str, advice: str, tmp_path: Path) -> None:
    code, _, told = run(f"""broken() {{ printf '%b\\n' "{said}"; return 100; }}; step "do it" broken""", tmp_path)
    assert code == 1
    assert "'do it' failed" in told and advice in told
    assert said.split("\\n")[0] in told, "the words of the program itself"
    assert "unexpected failure" not in told


def test_a_step_stops_at_its_first_failure(tmp_path: Path) -> None:
    code, _, told = run("""broken() { false; echo went on; }; step "do it" broken""", tmp_path)
    assert code == 1 and "went on" not in told


def test_what_is_installed_is_readable_whatever_root_s_umask(tmp_path: Path) -> None:
    done = subprocess.run(["bash", "-c", f"umask 077\n{PIECES}\numask"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0022"


def test_the_administrator_s_programs_are_found_without_sbin_in_the_path(tmp_path: Path) -> None:
    _, path, _ = run('echo "$PATH"', tmp_path, PATH="/usr/bin:/bin")
    assert path.strip().split(":")[-2:] == ["/usr/sbin", "/sbin"]


@pytest.mark.parametrize(
    ("said", "enough"),
    [
        ("runsc version release-20240729.0", True),
        ("runsc version release-20250101.1", True),
        ("runsc version 20231009", False),
        ("runsc version release-20220905.0", False),
    ],
)
def test_a_runsc_that_is_too_old_is_replaced(said: str, enough: bool, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "runsc"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    code, _, _ = run("runsc_is_new_enough || exit 3", tmp_path, PATH=f"{program.parent}:{ADMIN}")
    assert code == (0 if enough else 3)


def test_a_package_that_was_unpacked_half_way_is_no_runsc(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    (empty / "dpkg-query").write_text("#!/bin/sh\necho 0.0~20240729.0-4\n")  # dpkg knows a version all the same
    (empty / "dpkg-query").chmod(0o755)
    # After the script's own start nothing is in PATH but this.
    code, _, _ = run(f"PATH={empty}; runsc_is_new_enough || exit 3", tmp_path)
    assert code == 3


def test_a_virtual_environment_made_half_way_is_made_anew(tmp_path: Path) -> None:
    half = 'mkdir -p "$VENV/bin"; ln -s /usr/bin/python3 "$VENV/bin/python"; '
    assert run(f"{half} venv_stands || exit 3", tmp_path)[0] == 3
    whole = 'touch "$VENV/.skerry-venv"; '
    (tmp_path / "pip.py").touch()
    assert run(f"{whole} export PYTHONPATH={tmp_path}; venv_stands || exit 3", tmp_path)[0] == 0


def test_the_list_of_requirements_is_what_the_project_pins(tmp_path: Path) -> None:
    link = 'mkdir -p "$VENV/bin"; ln -s /usr/bin/python3 "$VENV/bin/python"; '
    code, out, told = run(f"{link} requirements server", tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    assert code == 0, told
    assert out.split("\n")[:-1] == [*wanted, *project["project"]["optional-dependencies"]["server"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives root up")
@pytest.mark.parametrize("command", ["up", "serve", "doctor", "test"])
def test_without_root_it_says_so_before_anything_else(command: str) -> None:
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", SCRIPT, "./skerry", command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("skerry: this needs root.") and "sudo" in done.stderr


def test_the_program_finds_them_too() -> None:
    code = "import os, skerry.entry as e; e._find_programs(); print(os.environ['PATH'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PATH": "/bin"}
    )
    assert done.stdout.strip() == "/bin:/usr/sbin:/sbin"
