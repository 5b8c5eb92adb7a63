"""Starting and ending the server, where none is needed: settings, locks, files that are not as they should be."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli import skerry

from skerry import instance
from skerry.cli.connection import _SERVER_MODULES  # pyright: ignore[reportPrivateUsage]
from skerry.cli.demo import run_demo
from skerry.cli.launch import changes, shown
from skerry.config import Config, inherited, load, locate
from skerry.model.errors import Invalid, Refused, Unavailable

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

HOLDER = """
import sys
from pathlib import Path
from skerry import serve
from skerry.config import Config
config = Config(home=Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    handle = serve._lock(config)
    if int(sys.argv[2]) == 1:
        print("held", flush=True)
        sys.stdin.read()
    serve.os.close(handle)
"""


def at(home: Path, **settings: object) -> Config:
    return Config.model_validate({"home": home, **settings})


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"SKERRY_HOME": str(home), **more}


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"port = ", b"\xff\xfe", b"port = 'x'", b"wrong = 1"], ids=["toml", "bytes", "value", "name"]
)
def test_a_broken_file_is_told_by_its_name_and_hinders_nobody_who_only_looks(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(Invalid, match=r"config\.toml"):
        load(environ=environ(tmp_path))
    assert locate(environ(tmp_path)).home == tmp_path
    assert inherited(environ(tmp_path, SKERRY_PORT="1")).port == 1


def test_a_directory_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(Invalid, match="cannot be read"):
        load(environ=environ(tmp_path))


def test_a_relative_home_is_the_same_wherever_a_process_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environ={"SKERRY_HOME": "here"}).home == tmp_path / "here"
    assert locate({"SKERRY_HOME": "here"}).home == tmp_path / "here"


def test_the_runtime_that_nobody_names_is_the_pinned_one(tmp_path: Path) -> None:
    pin = at(tmp_path).runtime_pin
    assert load(environ=environ(tmp_path)).runtime == "runsc"
    pin.parent.mkdir()
    pin.write_text("crun\n")
    assert load(environ=environ(tmp_path)).runtime == "crun"
    assert load(environ=environ(tmp_path, SKERRY_RUNTIME="runc")).runtime == "runc"
    assert load({"runtime": "runsc"}, environ(tmp_path)).runtime == "runsc"
    pin.write_text("unknown\n")
    assert load(environ=environ(tmp_path)).runtime == "runsc"


def test_changed_settings_are_named_with_both_values(tmp_path: Path) -> None:
    settings = json.loads(json.dumps(at(tmp_path).model_dump(mode="json")))
    said = instance.Running(1, "http://127.0.0.1:1", "", settings)
    assert changes(at(tmp_path), said) == {}
    found = changes(at(tmp_path, port=1, allow_shared_kernel=True, dns="192.0.2.1"), said)
    assert shown(found) == "allow_shared_kernel false → true, dns (empty) → 192.0.2.1, port 7717 → 1"


def test_a_setting_of_a_wrong_form_is_told_what_its_form_is(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"file:///directory, s3://bucket/prefix") as refused:
        load(environ=environ(tmp_path, SKERRY_ARCHIVE_URL="/srv/archive"))
    assert "SKERRY_ARCHIVE_URL" in refused.value.message and "^" not in refused.value.message


# -- who runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the instance as a server does, whose pid file held another number before."""
    at(tmp_path).run_dir.mkdir()
    instance.pid_file(at(tmp_path)).write_text("1\n")
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), "1"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_who_runs_is_told_by_the_kernel_not_by_the_file(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    instance.pid_file(at(tmp_path)).write_text("1\n")
    assert instance.running_pid(at(tmp_path)) == holder.pid
    holder.kill()
    holder.wait()
    assert instance.running_pid(at(tmp_path)) is None


def test_a_second_server_is_refused_with_the_pid_of_the_first(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), "1"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert f"Conflict: The server of {tmp_path} runs already, as process {holder.pid}" in done.stderr


def test_asking_whether_a_server_runs_never_keeps_one_from_starting(tmp_path: Path) -> None:
    config = at(tmp_path)
    config.run_dir.mkdir()
    starting = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), "1500"], stderr=subprocess.PIPE)
    with starting:
        while starting.poll() is None:
            instance.running_pid(config)
    assert starting.returncode == 0


def test_whoever_comes_second_waits_and_says_so(tmp_path: Path) -> None:
    from skerry.cli import launch

    config = at(tmp_path)
    entered, order = threading.Event(), list[str]()

    def second() -> None:
        entered.set()
        with launch.alone(config):
            order.append("second")

    with launch.alone(config):
        thread = threading.Thread(target=second)
        thread.start()
        assert entered.wait(5)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


# -- files that are not as they should be ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\n", b"\xc3\xa9\n", b"two words\n", b"a\nb\n"])
def test_a_file_without_a_key_says_how_to_get_one(tmp_path: Path, content: bytes) -> None:
    instance.key_file(at(tmp_path)).write_bytes(content)
    with pytest.raises(Unavailable, match="Remove it"):
        instance.key(at(tmp_path))


def test_a_trouble_cannot_act_on_the_terminal_that_shows_it(tmp_path: Path) -> None:
    config = at(tmp_path)
    config.run_dir.mkdir()
    assert instance.trouble(config) == ""
    instance.trouble_file(config, "api").write_bytes(b"bad \x1b[2J\xff")
    instance.trouble_file(config, "node").write_text("")
    assert instance.trouble(config) == "The api cannot start: bad ?[2J\ufffd"


@as_root
def test_down_works_whatever_the_settings_are(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("port = [")
    done = skerry("down", "-o", "json", home=tmp_path, SKERRY_PORT="no number")
    assert (done.returncode, json.loads(done.stdout)["stopped"]) == (0, False)


def test_a_client_needs_no_settings_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("port = [")
    done = skerry("ls", home=tmp_path)
    assert "No server has been started" in done.stderr


@as_root
@pytest.mark.parametrize("command", ["ls", "client-env", "up", "down", "doctor", "serve"])
@pytest.mark.parametrize("kind", ["closed", "file", "no tree"])
def test_a_home_that_cannot_be_used_is_told_without_a_traceback(tmp_path: Path, command: str, kind: str) -> None:
    home = tmp_path / "home"
    if kind == "file":
        home.write_text("")
    elif kind == "closed":
        (home / "run").mkdir(parents=True)
        (home / "config.toml").write_text("")
        home.chmod(0o700)
    else:
        home = Path("/proc/nowhere/home")
    user = 65534 if kind == "closed" else None
    env = {k: v for k, v in os.environ.items() if not k.startswith("SKERRY_")}
    env |= {"SKERRY_HOME": str(home), "SKERRY_USER": "nobody", "SKERRY_PORT": "0"}
    tmp_path.chmod(0o755)
    argv = [sys.executable, "-m", "skerry", command]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, user=user, cwd="/", timeout=60)
    if command == "down" and kind != "closed":  # none can run there
        assert done.returncode == 0
        return
    assert done.returncode == 1
    assert done.stderr.startswith("skerry: ") or command == "doctor"
    assert "Traceback" not in done.stderr


@as_root
@pytest.mark.parametrize(("user", "told"), [("daemon", "chown -hR daemon:"), ("root", "never runs as root")])
def test_a_user_that_cannot_have_the_api_s_files_is_refused_with_what_to_do(
    tmp_path: Path, user: str, told: str
) -> None:
    from skerry.serve import check

    database = tmp_path / "api" / "skerry.db"
    database.parent.mkdir()
    database.touch()
    for path in (database, database.parent):
        os.chown(path, 65534, 65534)
    check(at(tmp_path, user="nobody"))
    with pytest.raises(Refused, match=told):
        check(at(tmp_path, user=user))
    done = skerry("up", home=tmp_path, SKERRY_USER=user, SKERRY_PORT="0")
    assert done.returncode == 1
    assert told in done.stderr
    assert database.stat().st_uid == 65534


# -- a client without the server's part --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["up", "serve", "doctor"])
def test_a_client_alone_says_which_extra_the_server_needs(tmp_path: Path, command: str) -> None:
    script = (
        "import sys\nfrom skerry.cli.connection import _SERVER_MODULES\n"
        "sys.modules.update(dict.fromkeys(_SERVER_MODULES))\n"
        f"sys.argv = ['skerry', {command!r}]\nfrom skerry.entry import main\nmain()\n"
    )
    env = {**os.environ, "SKERRY_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert done.stderr.startswith("skerry: This is the client alone")
    assert "skerry[server]" in done.stderr


def test_the_modules_that_a_server_needs_are_those_of_the_extra() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[\[=]", pin)[0].replace("-", "_") for pin in extras["server"]}
    assert set(_SERVER_MODULES) == names


# -- interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["typer", "skerry.cli.lifecycle", "skerry.cli.output"])
def test_an_interrupt_while_the_program_loads_ends_it_quietly(number: int, code: int, module: str) -> None:
    script = (
        "import os, sys\nclass Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Hook())\nsys.argv = ['skerry', '--help']\n"
        "from skerry.entry import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_the_program_begins_where_an_interrupt_is_safe() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert project["scripts"]["skerry"] == "skerry.entry:main"
    script = "import sys, skerry.entry; sys.exit(str([n for n in sys.modules if n.startswith('skerry.cli')]))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stderr.strip() == "[]"


class Box:
    def __init__(self, name: str) -> None:
        self.name = name
        self.destroyed = False

    def destroy(self) -> None:
        self.destroyed = True


class InterruptedServer:
    """One that makes what it is asked for, while its client is interrupted."""

    def __init__(self) -> None:
        self.boxes = [Box("another's")]

    def create(self, *, name: str) -> Box:
        self.boxes.append(Box(name))
        raise KeyboardInterrupt

    def list(self) -> list[Box]:
        return self.boxes


def test_an_interrupted_demo_takes_its_sandbox_along() -> None:
    server = InterruptedServer()
    with pytest.raises(KeyboardInterrupt):
        run_demo(server, [], quiet=True)  # pyright: ignore[reportArgumentType]
    assert [box.destroyed for box in server.boxes] == [False, True]


def test_flock_of_an_earlier_version_is_respected(tmp_path: Path) -> None:
    config = at(tmp_path)
    config.run_dir.mkdir()
    with instance.pid_file(config).open("w") as old:
        old.write("77\n")
        old.flush()
        fcntl.flock(old, fcntl.LOCK_EX)
        argv = [sys.executable, "-c", HOLDER, str(tmp_path), "1"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "runs already, as process 77" in done.stderr
