"""The command line without a server: what is imported, where things are printed, what is refused."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from skerry.cli.diagnosis import can_run
from skerry.cli.main import app
from skerry.cli.places import place as placed
from skerry.cli.sandboxes import parse_env
from skerry.model.capability import Probe
from skerry.model.errors import Invalid

COMMANDS = (
    *("up", "down", "serve", "doctor", "client-env", "login", "logout", "use", "completion"),
    *("create", "ls", "get", "label", "rm", "run", "exec", "shell", "cp", "logs", "ps", "ports", "metrics"),
    *("files ls", "files stat", "files mkdir", "files touch", "files mv", "files rm", "files watch", "files cat"),
    *("stop", "resume", "fork", "snapshot create", "snapshot ls", "snapshot get", "snapshot rm"),
    *("env ls", "env set", "env unset", "template ls", "template get", "template build"),
)
PLAIN = ("serve", "client-env", "completion", "shell", "files cat")  # they have no result but text or bytes


def skerry(*words: str, home: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SKERRY_")}
    env = {**kept, **environ, **({"SKERRY_HOME": str(home)} if home else {})}
    return subprocess.run([sys.executable, "-m", "skerry", *words], capture_output=True, text=True, env=env)


def test_help_names_every_command() -> None:
    done = skerry("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command.split()[0]} " in done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in PLAIN])
def test_every_command_that_has_a_result_gives_it_as_json(command: str) -> None:
    assert "--output" in skerry(*command.split(), "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_of_a_command_is_two_options(command: str) -> None:
    found = get_command(app)
    for word in command.split():
        assert isinstance(found, TyperGroup)
        found = found.commands[word]
    names = [name for option in found.params if isinstance(option, TyperOption) for name in option.opts]
    assert sorted(set(names)) == sorted(names)


def test_help_imports_no_server_and_no_http() -> None:
    script = (
        "import sys\nsys.argv = ['skerry', '--help']\nfrom skerry.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(str([n for n in ('httpx2', 'pydantic', 'fastapi', 'sqlalchemy', 'rich',"
        " 'websockets', 'asyncio') if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_a_fault_of_our_own_is_a_message_and_no_traceback() -> None:
    script = (
        "import sys\nfrom skerry.cli.main import app, main\n"
        "@app.command()\ndef broken() -> None: raise ZeroDivisionError('by\\x1b zero')\n"
        "sys.argv = ['skerry', 'broken']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 70
    assert "ZeroDivisionError: by? zero" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_terminal_cannot_show_is_no_reason_to_fail() -> None:
    script = "from skerry.cli.main import app, main\nfrom skerry.cli.output import data\nimport sys\n"
    script += "@app.command()\ndef show() -> None: data('\u65e5')\nsys.argv = ['skerry', 'show']\nmain()"
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=env)
    assert (done.returncode, done.stdout) == (0, b"\\u65e5\n")


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


@pytest.mark.parametrize(
    "environ",
    [
        {"SKERRY_URL": "http://[::1", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "http://host:port", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "http://host:99999", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "http://a b/", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "http://a\nb/", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "nonsense", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "http://\udcff/", "SKERRY_API_KEY": "k"},
        {"SKERRY_URL": "http://127.0.0.1:9", "SKERRY_API_KEY": "é"},
        {"SKERRY_URL": "http://127.0.0.1:9", "SKERRY_API_KEY": "two\nlines"},
        {"SKERRY_URL": "http://x" * 60, "SKERRY_API_KEY": "k"},
    ],
)
@pytest.mark.parametrize(("words", "code"), [(("ls",), 1), (("exec", "box", "true"), 125)])
def test_a_wrong_environment_is_one_clear_line(environ: dict[str, str], words: tuple[str, ...], code: int) -> None:
    done = skerry(*words, **environ)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("skerry: ") and done.stderr.count("\n") == 1, done.stderr


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
        ("box:", ("box", "")),
        (":/a", ("", "/a")),
        ("..:a", (None, "..:a")),
        ("./a:b", (None, "./a:b")),
        ("/tmp/a:b", (None, "/tmp/a:b")),
        ("plain", (None, "plain")),
    ],
)
def test_a_place_is_here_or_in_a_sandbox(word: str, place: tuple[str | None, str]) -> None:
    assert placed(word) == place


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


class Api(BaseHTTPRequestHandler):
    """A server that says what a hostile one, or another client, may say."""

    NAME = "\x1b[2J\x9bred\n\u202eevil"
    view: ClassVar[dict[str, object]] = {
        "id": "sbx_00000000000000000000", "name": NAME, "status": "ready", "template": NAME, "runtime": NAME,
        "memory_mb": 1, "cpu_millis": 1, "disk_mb": 1, "timeout_seconds": 1, "network_mode": "none", "env": {"A": NAME},
        "capabilities": [], "metadata": {"m": NAME}, "created_at": "2030-01-01T00:00:00Z",
        "updated_at": "2030-01-01T00:00:00Z",
    }  # fmt: skip

    entry: ClassVar[dict[str, object]] = {
        "name": ".bashrc", "path": "/.bashrc", "type": "file", "size_bytes": 1, "mode": "0644", "uid": 0, "gid": 0,
        "modified_at": "2030-01-01T00:00:00Z",
    }  # fmt: skip

    def do_GET(self) -> None:
        if "/files/stat" in self.path:
            self.answer(200, json.dumps(self.entry).encode())
            return
        listing = self.path.split("?")[0] == "/v1/sandboxes"
        body = json.dumps({"data": [self.view]} if listing else self.view).encode()
        self.answer(200, body)

    def do_DELETE(self) -> None:
        self.answer(409, json.dumps({"error": {"code": "x", "message": f"no {self.NAME}"}}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[dict[str, str]]:
    """The environment that leads to such a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever).start()
        yield {"SKERRY_URL": f"http://127.0.0.1:{server.server_port}", "SKERRY_API_KEY": "k", "PYTHONUTF8": "1"}
        server.shutdown()


@pytest.mark.parametrize("words", [("ls",), ("get", "sbx_00000000000000000000"), ("rm", "sbx_00000000000000000000")])
def test_nothing_that_a_server_says_acts_on_a_terminal(api: dict[str, str], words: tuple[str, ...]) -> None:
    done = skerry(*words, **api)
    said = done.stdout + done.stderr
    assert "evil" in said
    assert all(character.isprintable() or character == "\n" for character in said), repr(said)
    if words[0] == "ls":
        assert said.count("\n") == 2


def test_a_reader_that_has_gone_ends_the_program_quietly(api: dict[str, str]) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SKERRY_")}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "skerry", "ls"], stdout=writing, stderr=subprocess.PIPE, env={**kept, **api}
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("source", ["/f", "f", "/d/../f", "/f/"])
def test_a_copy_has_the_name_that_was_asked_for_whatever_the_sandbox_calls_it(
    api: dict[str, str], tmp_path: Path, source: str
) -> None:
    done = skerry("cp", f"sbx_00000000000000000000:{source}", str(tmp_path), **api)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_copy_of_what_has_no_name_needs_one(api: dict[str, str], tmp_path: Path) -> None:
    for source in ("/", "/..", "/d/..", "../.."):
        done = skerry("cp", f"sbx_00000000000000000000:{source}", str(tmp_path), **api)
        assert (done.returncode, list(tmp_path.iterdir())) == (1, []), source


def test_what_this_machine_refuses_is_one_clear_line(api: dict[str, str], tmp_path: Path) -> None:
    box = "sbx_00000000000000000000"
    for words in (("cp", f"{box}:/f", f"{tmp_path}/no/where"), ("cp", f"{tmp_path}/none", f"{box}:/f")):
        done = skerry(*words, **api)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("skerry: ") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("words", [["--since", "-5"], ["--step", "60"], ["--since", "60", "--step", "0"]])
def test_x4_times_of_metrics_that_show_nothing_are_refused(words: list[str]) -> None:
    done = skerry("metrics", "box", *words)
    assert done.returncode in (1, 2)
    assert words[-2] in done.stderr and "Traceback" not in done.stderr
