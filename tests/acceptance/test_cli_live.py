"""The command line against a real server."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from acceptance.servers import Server, eventually

from skerry import Sandbox, Skerry

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def skerry(server: Server, tmp_path: Path) -> Run:
    def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["skerry", *words], env=server.environ, cwd=tmp_path, input=stdin, capture_output=True, timeout=60
        )

    return run


def test_exec_passes_output_and_exit_code_through(skerry: Run, sandbox: Sandbox) -> None:
    done = skerry("exec", sandbox.id, "--", "sh", "-c", r"printf 'a\000\377'; printf err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"a\0\xff", b"err", 7)


def test_exec_shows_a_signal_as_a_shell_would(skerry: Run, sandbox: Sandbox) -> None:
    assert skerry("exec", sandbox.id, "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_exec_takes_options_of_the_command_without_dashes(skerry: Run, sandbox: Sandbox) -> None:
    assert skerry("exec", sandbox.id, "echo", "-n", "--help").stdout == b"--help"


def test_exec_gives_standard_input(skerry: Run, sandbox: Sandbox) -> None:
    assert skerry("exec", "-i", sandbox.id, "--", "tr", "a-z", "A-Z", stdin=b"loud\n").stdout == b"LOUD\n"


def test_a_sandbox_is_found_by_name_and_by_the_beginning_of_its_id(skerry: Run, client: Skerry) -> None:
    made = json.loads(skerry("create", "--name", "by-name", "-e", "A=1", "-o", "json").stdout)
    try:
        for word in ("by-name", made["id"], made["id"][:14], made["id"][4:14]):
            assert json.loads(skerry("get", word, "-o", "json").stdout)["id"] == made["id"]
        assert made["id"] in [one["id"] for one in json.loads(skerry("ls", "-o", "json").stdout)]
        assert skerry("exec", "by-name", "--", "sh", "-c", "echo $A").stdout == b"1\n"
    finally:
        assert skerry("rm", "by-name").returncode == 0
    missing = skerry("get", "by-name")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert b"skerry ls" in missing.stderr


def test_run_leaves_nothing_behind(skerry: Run, client: Skerry, tmp_path: Path) -> None:
    before = {box.id for box in client.list()}
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:]); sys.exit(9)")
    done = skerry("run", "script.py", "one", "--two")
    assert (done.stdout, done.returncode) == (b"['one', '--two']\n", 9)
    assert skerry("run", "--network", "none", "--", "echo", "inside").stdout == b"inside\n"
    assert {box.id for box in client.list()} == before


def test_run_is_ended_by_an_interrupt_and_takes_its_sandbox_along(server: Server, client: Skerry) -> None:
    before = {box.id for box in client.list()}
    process = subprocess.Popen(
        ["skerry", "run", "--", "sh", "-c", "echo up; sleep 300"], env=server.environ, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stdout.close()
    eventually("its sandbox is gone", lambda: {box.id for box in client.list()} <= before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_takes_its_sandbox_along_whenever_it_is_interrupted(
    server: Server, client: Skerry, number: signal.Signals
) -> None:
    """Most of the time it takes is the create call: an interrupt there must not leave a sandbox nobody knows of."""
    before = {box.id for box in client.list()}
    for step in range(12):
        process = subprocess.Popen(
            ["skerry", "run", "--", "true"], env=server.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(0.3 + step * 0.08)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        # 0: it had ended; -n: it had not begun; 128 + n: its parts were being loaded.
        assert process.wait(60) in (0, 130, 128 + number, -number, -signal.SIGINT)
    eventually("no sandbox of it is left", lambda: {box.id for box in client.list()} <= before)


def test_exec_ends_with_whoever_reads_its_output(server: Server, sandbox: Sandbox) -> None:
    mark = "while :; do echo mark; sleep 0.05; done"
    process = subprocess.Popen(
        ["skerry", "exec", sandbox.id, "--", "sh", "-c", mark],
        env=server.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"mark\n"
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()
    look = "import glob; print(sum(b'echo mark' in open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')))"
    eventually("the command has ended", lambda: sandbox.commands.run(["python3", "-c", look]).stdout == "1\n")


def test_a_name_that_several_have_is_not_guessed(skerry: Run, client: Skerry) -> None:
    boxes = [client.create("python", name="-twice") for _ in range(2)]
    try:
        done = skerry("get", "--", "-twice")
        assert done.returncode == 1
        assert all(box.id.encode() in done.stderr for box in boxes)
        boxes.pop().destroy()
        assert json.loads(skerry("get", "-o", "json", "--", "-twice").stdout)["id"] == boxes[0].id
        # What follows `--` is a command, so that such a sandbox is named by its id.
        assert skerry("exec", boxes[0].id, "--", "echo", "one").stdout == b"one\n"
    finally:
        for box in boxes:
            box.destroy()


def test_cp_copies_trees_both_ways(skerry: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "data").write_bytes(os.urandom(3_000_000))
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("/etc/passwd")
    done = skerry("cp", "tree", f"{sandbox.id}:/workspace/")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert sandbox.commands.run("tree/run.sh; readlink tree/link").stdout == "ran\n/etc/passwd\n"
    back = skerry("cp", "-r", f"{sandbox.id}:/workspace/tree", "back")
    assert back.returncode == 0
    assert b"left out link" in back.stderr  # it leads out of the directory
    assert (tmp_path / "back/deep/er/data").read_bytes() == (tree / "deep/er/data").read_bytes()
    assert not (tmp_path / "back/link").exists()


def test_cp_of_what_is_not_there_says_so(skerry: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    done = skerry("cp", f"{sandbox.id}:/nowhere", "here")
    assert done.returncode == 1
    assert b"nowhere" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_cp_replaces_files_only(skerry: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("data", b"x")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / ".kept.part").write_text("mine")
    done = skerry("cp", f"{sandbox.id}:/workspace/data", "fifo")
    assert done.returncode == 1 and b"no regular file" in done.stderr
    assert fifo.is_fifo()
    assert skerry("cp", f"{sandbox.id}:/workspace/data", "kept").returncode == 0
    assert (tmp_path / ".kept.part").read_text() == "mine"


def test_rm_takes_no_slip_for_a_sandbox(skerry: Run, client: Skerry, sandbox: Sandbox) -> None:
    for word in ("", "s", "sbx_", sandbox.id[4:6]):
        assert skerry("rm", word).returncode == 1
    assert client.get(sandbox.id).info.status == "ready"


def test_the_first_key_goes_to_this_machines_server_alone(skerry: Run, server: Server) -> None:
    elsewhere = {**server.environ, "SKERRY_URL": "http://127.0.0.1:9"}
    del elsewhere["SKERRY_API_KEY"]
    done = subprocess.run(["skerry", "ls"], env=elsewhere, capture_output=True, timeout=30)
    assert done.returncode == 1 and b"SKERRY_API_KEY" in done.stderr


def test_client_env_is_all_that_a_client_needs(server: Server, tmp_path: Path) -> None:
    script = 'eval "$(skerry client-env)"; env | grep -E "^(SKERRY|FLAX)_" | sort'
    bare = {k: v for k, v in server.environ.items() if not k.startswith(("SKERRY_", "FLAX_"))}
    done = subprocess.run(
        ["bash", "-c", script],
        env={**bare, "SKERRY_HOME": server.environ["SKERRY_HOME"]},
        capture_output=True,
        text=True,
    )
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert told["SKERRY_URL"] == told["FLAX_BASE_URL"] == server.url
    assert told["SKERRY_API_KEY"] == told["FLAX_API_KEY"] == server.key
    assert int(Path(told["SKERRY_PIDFILE"]).read_text()) == server.pid("supervisor")


def test_doctor_tries_this_host_while_a_server_runs(skerry: Run, server: Server) -> None:
    done = skerry("doctor", "-o", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ready"], told["runtime"]) == (0, True, "runsc")
    assert {"sbxd", "runsc", "pool", "nftables"} <= {probe["name"] for probe in told["probes"] if probe["ok"]}
    assert not list(server.config.home.glob("doctor-*"))


def test_doctor_fails_where_no_sandbox_can_run(server: Server, tmp_path: Path) -> None:
    env = {**server.environ, "SKERRY_HOME": str(tmp_path / "empty")}
    done = subprocess.run(["skerry", "doctor"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "✗ sbxd" in done.stdout
    assert "→ `./skerry up` builds it" in done.stdout
