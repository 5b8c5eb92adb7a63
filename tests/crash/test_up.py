"""`up` on a real server: one server however many ask, every changed setting in force or refused, nothing half-done."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acceptance.servers import eventually
from crash.instances import CrashServer

from skerry import Sandbox, Skerry, instance
from skerry.config import Config

# What the tests' own start gives in the environment is given in the file here.
IN_FILE = ("allow_shared_kernel", "runtime", "port", "user", "pool_mb", "inodes", "default_template")


class Home:
    """An instance that is started by `up` alone, with its settings in `config.toml`."""

    def __init__(self) -> None:
        server = CrashServer("crun", name="up")
        server.prepare()
        server._place_sbxd()  # pyright: ignore[reportPrivateUsage]
        self.config = server.config
        self.settings: dict[str, Any] = {name: getattr(self.config, name) for name in IN_FILE}
        self._first = dict(self.settings)
        self.write()

    def reset(self) -> None:
        self.settings = dict(self._first)
        self.write()

    def write(self, **changed: object) -> None:
        self.settings |= changed
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self.settings.items()]
        (self.config.home / "config.toml").write_text("".join(lines))

    def begin(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
        return subprocess.Popen(
            [sys.executable, "-m", "skerry", *words],
            env={**kept, "SKERRY_HOME": str(self.config.home), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def run(self, *words: str, code: int = 0, **environ: str) -> tuple[Any, str]:
        """What it said: its JSON (None where it failed) and its stderr."""
        out, err = self.begin(*words, "-o", "json", **environ).communicate(timeout=120)
        return self._told(words, out, err, code)

    def up(self, *words: str, code: int = 0, **environ: str) -> tuple[Any, str]:
        process = self.begin("up", "--no-demo", *words, "-o", "json", **environ)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        assert "Traceback" not in err
        return (json.loads(out) if code == 0 else None), err

    @staticmethod
    def _told(words: tuple[str, ...], out: str, err: str, code: int) -> tuple[Any, str]:
        assert "Traceback" not in err, words
        return (json.loads(out) if out else None), err

    @property
    def pid(self) -> int | None:
        return instance.running_pid(self.config)

    @property
    def lock(self) -> int:
        """Who was the last to hold the lock of `up` and `down`."""
        return int((self.config.run_dir / "up.lock").read_text() or 0)

    def client(self) -> Skerry:
        return Skerry(instance.url(self.config), instance.key(self.config))

    def note(self, told: Any) -> str:
        return next(step["note"] for step in told["steps"] if step["step"] == "start the server")

    def empty(self) -> None:
        with self.client() as client:
            for box in client.list():
                box.destroy()


@pytest.fixture(scope="module")
def started() -> Iterator[Home]:
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    home = Home()
    yield home
    home.run("down")


@pytest.fixture
def home(started: Home) -> Home:
    """Running, without sandboxes, with the settings that it has in the file."""
    started.reset()
    started.up()
    started.empty()
    return started


@pytest.fixture
def box(home: Home) -> Iterator[Sandbox]:
    """A sandbox in which something runs."""
    with home.client() as client:
        box = client.create()
        box.commands.run("sleep 600 >/dev/null 2>&1 &")
        yield box
    home.reset()
    home.up()
    home.empty()


def goes_on(home: Home, box: Sandbox) -> bool:
    with home.client() as client:
        return client.get(box.id).commands.run("busybox pidof sleep").exit_code == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_many_ups_at_once_start_one_server_and_all_report_it(home: Home) -> None:
    home.run("down")
    processes = [home.begin("up", "--no-demo", "-o", "json") for _ in range(6)]
    ended = [(process, *process.communicate(timeout=120)) for process in processes]
    assert [process.returncode for process, _, _ in ended] == [0] * 6, [err for _, _, err in ended]
    assert {json.loads(out)["pid"] for _, out, _ in ended} == {home.pid}
    assert sum(home.note(json.loads(out)).startswith("started") for _, out, _ in ended) == 1


@pytest.mark.long
def test_an_up_and_a_down_at_once_leave_no_half_server(home: Home) -> None:
    processes = [home.begin(*words, "-o", "json") for words in (("down",), ("up", "--no-demo"), ("down",))]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert "Traceback" not in err
    told, _ = home.up()
    assert told["pid"] == home.pid


@pytest.mark.long
def test_x4_a_server_with_the_same_settings_is_left_alone(home: Home) -> None:
    pid = home.pid
    told, _ = home.up()
    assert (told["pid"], told["changed"]) == (pid, {})
    assert home.note(told).startswith(f"runs already, process {pid}")


def test_x4_changed_settings_restart_the_server_and_its_sandboxes_go_on(home: Home, box: Sandbox) -> None:
    pid, port = home.pid, free_port()
    home.write(memory_mb=256)
    told, _ = home.up(SKERRY_LOG_LEVEL="warning")
    assert told["changed"] == {
        "log_level": {"from": "info", "to": "warning"},
        "memory_mb": {"from": 512, "to": 256},
    }
    assert told["pid"] != pid
    assert goes_on(home, box)
    told, _ = home.up("--port", str(port), SKERRY_LOG_LEVEL="warning")
    assert told["url"] == f"http://127.0.0.1:{port}"
    assert list(told["changed"]) == ["port"]
    assert f"port {home.config.port} → {port}" in home.note(told)
    assert goes_on(home, box)
    with home.client() as client, client.create() as fresh:
        assert fresh.info.memory_mb == 256


def test_x4_another_runtime_is_refused_while_a_sandbox_is_on_the_old_one(home: Home, box: Sandbox) -> None:
    pid = home.pid
    _, err = home.up("--runtime", "runc", code=1)
    assert "skerry rm" in err
    assert "--runtime crun" in err
    assert home.pid == pid
    assert goes_on(home, box)


@pytest.mark.long
def test_x4_another_runtime_is_booted_and_pinned_where_no_sandbox_is(home: Home) -> None:
    if shutil.which("runc") is None:
        pytest.skip("runc is not installed")
    told, _ = home.up("--runtime", "runc")
    assert told["runtime"] == "runc"
    with home.client() as client, client.create() as box:
        assert box.runtime == "runc"
    # Named nowhere, the runtime is the pinned one: a bare `up` changes nothing.
    del home.settings["runtime"]
    home.write()
    told, _ = home.up()
    assert (told["runtime"], told["changed"]) == ("runc", {})
    home.write(runtime="crun")
    assert home.up()[0]["runtime"] == "crun"


@pytest.mark.long
def test_a_runtime_that_is_not_permitted_is_refused_before_the_server_is_touched(home: Home) -> None:
    pid = home.pid
    _, err = home.up(code=1, SKERRY_ALLOW_SHARED_KERNEL="false")
    assert "allow_shared_kernel" in err
    assert home.pid == pid


@pytest.mark.long
def test_a_change_that_fails_leaves_the_server_as_it_was(home: Home, box: Sandbox) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, err = home.up("--port", str(taken.getsockname()[1]), code=1)
    assert "Cannot listen" in err
    assert "as it did before, without the change of port" in err
    assert instance.url(home.config) == f"http://127.0.0.1:{home.config.port}"
    assert goes_on(home, box)
    told, _ = home.up()
    assert told["changed"] == {}


@pytest.mark.long
def test_what_was_wrong_on_the_host_and_is_mended_is_tried_anew(home: Home) -> None:
    sbxd, aside = home.config.sbxd, home.config.sbxd.with_suffix(".aside")
    home.run("down")
    sbxd.rename(aside)
    try:
        _, err = home.up(code=1)
        assert "sbxd" in err
    finally:
        aside.rename(sbxd)
    told, _ = home.up()
    assert home.note(told).startswith("restarted: its last start had failed")


def test_a_wrong_setting_that_is_mended_is_in_force_at_the_next_up(home: Home) -> None:
    home.run("down")
    _, err = home.up(code=1, SKERRY_SANDBOX_NETWORK="8.8.8.8/33")
    assert "8.8.8.8/33" in err
    told, _ = home.up()
    assert list(told["changed"]) == ["sandbox_network"]


@pytest.mark.long
def test_a_file_that_was_broken_meanwhile_harms_no_running_server(home: Home) -> None:
    (home.config.home / "config.toml").write_text("port = [")
    server = CrashServer("crun", name="up")
    server.restarted("node", server.kill("node"))
    _, err = home.up(code=1)
    assert "config.toml" in err
    report, _ = home.run("doctor", code=1)
    assert report["server"]["healthy"] is True
    assert next(p for p in report["probes"] if p["name"] == "settings")["ok"] is False
    told, _ = home.run("down")
    assert told["stopped"] is True
    home.write()


def test_doctor_tells_of_the_running_server_and_the_real_pool(home: Home) -> None:
    report, _ = home.run("doctor", SKERRY_PORT="1")
    assert report["ready"] is True
    server, pool = report["server"], report["pool"]
    assert (server["pid"], server["healthy"], server["runtime"]) == (home.pid, True, "crun")
    assert server["create"]["ok"] is True
    assert server["changed"] == ["port"]
    assert pool["path"] == str(home.config.pool_dir)
    assert 0 < pool["used_mb"] < pool["size_mb"] <= 1024
    assert pool["disk_limit"] in ("simple-quota", "qgroup")
    with home.client() as client:
        assert client.list().all() == []


@pytest.mark.long
def test_doctor_tells_why_a_running_server_makes_no_sandbox(home: Home) -> None:
    sbxd, aside = home.config.sbxd, home.config.sbxd.with_suffix(".aside")
    sbxd.rename(aside)
    try:
        report, _ = home.run("doctor", code=1)
    finally:
        aside.rename(sbxd)
    assert report["ready"] is False
    assert report["server"]["create"]["ok"] is False
    assert report["server"]["create"]["detail"]


@pytest.mark.long
def test_doctor_without_a_server_tells_of_the_pool_that_lies_there(home: Home) -> None:
    home.run("down")
    report, _ = home.run("doctor")
    assert (report["server"], report["pool"]["image_mb"]) == ({"running": False}, 1024)
    assert "pool can be made" in [probe["name"] for probe in report["probes"]]


@pytest.mark.parametrize("moment", ["before the server", "while it starts", "while it gets ready"])
@pytest.mark.long
def test_an_interrupted_up_says_so_and_the_next_one_goes_on(home: Home, moment: str) -> None:
    home.run("down")
    process = home.begin("up", "--no-demo")
    reached = {
        "before the server": lambda: home.lock == process.pid,
        "while it starts": lambda: home.pid is not None,
        "while it gets ready": lambda: instance.url_file(home.config).exists(),
    }
    eventually("it is that far", reached[moment], every_s=0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "`skerry up` continues" in err
    assert "Traceback" not in err
    told, _ = home.up()
    assert told["pid"] == home.pid


@pytest.mark.long
def test_an_up_that_was_killed_leaves_no_lock(home: Home) -> None:
    home.run("down")
    process = home.begin("up", "--no-demo")
    eventually("it has begun", lambda: home.lock == process.pid)
    process.kill()
    process.communicate()
    told, _ = home.up()
    assert told["pid"] == home.pid


def test_the_settings_of_a_server_are_root_s_alone(home: Home) -> None:
    said = instance.published(home.config)
    assert said is not None
    assert (said.pid, Config.model_validate(said.settings).port) == (home.pid, home.config.port)
    assert instance.published_file(home.config).stat().st_mode & 0o777 == 0o600
    home.run("down")
    assert instance.published(home.config) is None
    assert not Path(instance.url_file(home.config)).exists()
