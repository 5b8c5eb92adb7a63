"""The command line without a server: what is imported, where things are printed, what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.cli.copying import _place  # pyright: ignore[reportPrivateUsage]
from skerry.cli.diagnosis import can_run
from skerry.cli.sandboxes import parse_env
from skerry.model.capability import Probe
from skerry.model.errors import Invalid

COMMANDS = ("up", "down", "serve", "doctor", "run", "create", "ls", "get", "exec", "cp", "rm", "client-env")


def skerry(*words: str, home: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SKERRY_")}
    env = {**kept, **environ, **({"SKERRY_HOME": str(home)} if home else {})}
    return subprocess.run([sys.executable, "-m", "skerry", *words], capture_output=True, text=True, env=env)


def test_help_names_every_command() -> None:
    done = skerry("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("serve", "client-env")])
def test_every_command_that_has_a_result_gives_it_as_json(command: str) -> None:
    assert "--output" in skerry(command, "--help").stdout


def test_help_imports_no_server_and_no_http() -> None:
    script = (
        "import sys\nsys.argv = ['skerry', '--help']\nfrom skerry.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(str([n for n in ('httpx2', 'pydantic', 'fastapi', 'sqlalchemy', 'rich') if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_without_a_server_the_error_says_what_to_do(tmp_path: Path) -> None:
    done = skerry("ls", home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "skerry up" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_server_is_told_as_such() -> None:
    done = skerry("ls", "-o", "json", SKERRY_URL="http://127.0.0.1:9", SKERRY_API_KEY="k")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"]["code"] == "unreachable"


def test_a_failure_of_exec_itself_is_no_exit_code_of_a_command(tmp_path: Path) -> None:
    assert skerry("exec", "box", "--", "true", home=tmp_path).returncode == 125


def test_down_without_a_server_is_a_success(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("down is for root")
    done = skerry("down", "-o", "json", home=tmp_path)
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {"stopped": False, "pid": None, "sandboxes_left_running": 0},
    )


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("box:/a:b", ("box", "/a:b")),
        ("box:", ("box", "/workspace/")),
        ("./a:b", (None, "./a:b")),
        ("/tmp/a:b", (None, "/tmp/a:b")),
        ("plain", (None, "plain")),
    ],
)
def test_a_place_is_here_or_in_a_sandbox(word: str, place: tuple[str | None, str]) -> None:
    assert _place(word) == place


def test_an_environment_word_has_a_name_and_a_value() -> None:
    assert parse_env(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(Invalid, match="NAME=VALUE"):
        parse_env(["A"])


def probe(name: str, ok: bool, *, required: bool = True) -> Probe:
    return Probe(name, ok, "", required=required)


@pytest.mark.parametrize(
    ("probes", "ready"),
    [
        ([probe("runsc", True), probe("crun", False, required=False), probe("net", True)], True),
        ([probe("runsc", False), probe("crun", True, required=False), probe("net", True)], False),
        ([probe("runsc", True), probe("net", False)], False),
        ([probe("net", True)], False),
    ],
    ids=["other runtime fails", "pinned runtime fails", "network fails", "runtime never tried"],
)
def test_a_host_can_run_sandboxes_when_all_that_is_needed_works(probes: list[Probe], ready: bool) -> None:
    assert can_run("runsc", probes) is ready
