"""The command line's nouns against a real server: labels, contexts, logins, files, env, listings, completion."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from acceptance.servers import Server, eventually

from skerry import Sandbox, Skerry

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Told = Callable[..., Any]


@pytest.fixture
def environ(server: Server, tmp_path: Path) -> dict[str, str]:
    return {**server.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def skerry(environ: dict[str, str], work: Path) -> Run:
    def run(*words: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
        env = {**environ, **more}
        return subprocess.run(["skerry", *words], env=env, cwd=work, input=stdin, capture_output=True, timeout=60)

    return run


@pytest.fixture
def told(skerry: Run) -> Callable[..., Any]:
    """What a command says with -o json."""

    def run(*words: str) -> Any:
        done = skerry(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def used(skerry: Run, sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox that is in use in the working directory."""
    assert skerry("use", sandbox.id).stdout.decode() == f"{sandbox.id}\n"
    yield sandbox


def test_a_label_stands_for_a_sandbox_and_for_several_where_all_are_meant(skerry: Run, told: Told) -> None:
    one, two = (told("create", "-l", "team=x", "-l", f"part={part}")["id"] for part in ("a", "b"))
    assert told("get", "part=a")["id"] == one
    assert {box["id"] for box in told("ls", "--label", "team=x")} == {one, two}
    several = skerry("rm", "team=x")
    assert several.returncode == 1 and one.encode() in several.stderr
    assert told("label", one, "part=c", "team-")["metadata"] == {"part": "c"}
    assert told("rm", "--all", "part=c", "team=x")["destroyed"] == [one, two]


def test_commands_mean_the_sandbox_in_use_here(skerry: Run, told: Told, used: Sandbox, work: Path) -> None:
    assert told("get")["id"] == used.id
    assert skerry("exec", "--", "echo", "box", "--", "x").stdout == b"box -- x\n"
    (work / "data").write_bytes(b"1")
    assert told("cp", "data", ":")["entries"] == 1
    assert skerry("files", "cat", ":data").stdout == b"1"
    missing = skerry("exec", "echo", "hello")
    assert missing.returncode == 125 and b"echo" in missing.stderr
    assert told("use", "--forget") == {"forgotten": True}
    nothing = skerry("get")
    assert nothing.returncode == 1 and b"skerry use" in nothing.stderr


def test_a_context_of_another_server_is_not_used_and_no_key_goes_there(
    skerry: Run, used: Sandbox, work: Path, environ: dict[str, str]
) -> None:
    other = {"sandbox": used.id, "server": "http://127.0.0.1:9"}
    (work / ".skerry").write_text(json.dumps(other))
    assert b"not used" in skerry("get").stderr
    own = Path(environ["XDG_CONFIG_HOME"]) / "skerry" / "contexts.json"
    own.write_text(json.dumps({str(work): [other["sandbox"], other["server"]]}))
    done = skerry("get")
    assert done.returncode == 1 and b"http://127.0.0.1:9" in done.stderr


def test_create_can_use_what_it_makes(skerry: Run, told: Told) -> None:
    made = told("create", "--use")["id"]
    assert told("use")["sandbox"] == made
    assert skerry("rm", made).returncode == 0


def test_a_login_serves_later_commands(environ: dict[str, str], server: Server, work: Path, sandbox: Sandbox) -> None:
    bare = {name: value for name, value in environ.items() if not name.startswith("SKERRY_")}

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(["skerry", *words], env=bare, cwd=work, input=stdin, capture_output=True, text=True)

    done = run("login", server.url, stdin=f"{server.key}\n")
    assert done.returncode == 0, done.stderr
    assert server.key not in done.stdout + done.stderr
    assert json.loads(run("get", sandbox.id, "-o", "json").stdout)["id"] == sandbox.id
    assert run("login", server.url, stdin="wrong\n").returncode == 1
    assert run("get", sandbox.id).returncode == 0
    assert run("logout").returncode == 0
    assert run("get", sandbox.id).returncode == 1


def test_run_takes_files_and_input_along(skerry: Run, client: Skerry, work: Path) -> None:
    before = {box.id for box in client.list()}
    (work / "tree").mkdir()
    (work / "tree" / "inner").write_text("from a tree")
    (work / "data").write_text("from a file")
    (work / "script.py").write_text(
        "import sys\nprint(sys.argv[1:], open('data').read(), open('/srv/t/inner').read(), sys.stdin.read())\n"
        "print('err', file=sys.stderr)\nsys.exit(9)\n"
    )
    words = ["--template", "python", "--file", "data", "--file", "tree:/srv/t", "script.py", "a", "--b"]
    done = skerry("run", *words, stdin=b"\x00in")
    assert done.stdout == b"['a', '--b'] from a file from a tree \x00in\n"
    assert (done.stderr, done.returncode) == (b"err\n", 9)
    assert {box.id for box in client.list()} == before
    absent = skerry("run", "absent.py")
    assert absent.returncode == 125 and b"absent.py" in absent.stderr


def test_exec_i_passes_bytes_of_any_kind_and_size_both_ways(skerry: Run, sandbox: Sandbox) -> None:
    data = os.urandom(20_000_000)
    done = skerry("exec", "-i", sandbox.id, "--", "cat", stdin=data)
    assert (done.returncode, done.stdout == data) == (0, True)


def test_output_beyond_the_servers_cap_comes_whole_to_who_reads_it(
    server: Server, environ: dict[str, str], sandbox: Sandbox
) -> None:
    size = server.config.output_cap_mb * 1_048_576 + 10_000_000
    command = ["skerry", "exec", sandbox.id, "--", "head", "-c", str(size), "/dev/zero"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert sum(len(chunk) for chunk in iter(lambda: process.stdout.read(1 << 20), b"")) == size  # type: ignore
    assert process.returncode == 0


def test_the_files_of_a_sandbox(skerry: Run, told: Told, used: Sandbox) -> None:
    assert told("files", "mkdir", ":a/b")["type"] == "dir"
    assert told("files", "touch", ":a/b/empty")["size_bytes"] == 0
    assert told("files", "mv", ":a/b/empty", "a/moved")["path"] == "/workspace/a/moved"
    assert {entry["name"] for entry in told("files", "ls", f"{used.id}:a")} == {"b", "moved"}
    assert told("files", "stat", ":a/moved")["type"] == "file"
    assert skerry("files", "rm", ":a").returncode == 1
    assert told("files", "rm", "-r", ":a") == {"removed": [":a"]}
    assert told("files", "ls") == []


def test_names_from_inside_act_on_no_terminal(skerry: Run, used: Sandbox) -> None:
    used.commands.run(["touch", "a\x1b]0;owned\x07\nb"]).check()
    for words in (["files", "ls"], ["files", "stat", ":a\x1b]0;owned\x07\nb"]):
        shown = skerry(*words).stdout
        assert b"owned" in shown
        assert b"\x1b" not in shown and b"\x07" not in shown


def test_changes_are_told_as_they_come(environ: dict[str, str], work: Path, used: Sandbox) -> None:
    with subprocess.Popen(
        ["skerry", "files", "watch", ":", "-o", "json"], env=environ, cwd=work, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        seen: list[bytes] = []

        def noticed() -> bool:
            used.files.write(f"new-{time.monotonic_ns()}", b"")
            seen.append(process.stdout.read() or b"")  # type: ignore[union-attr]
            return b"new-" in b"".join(seen)

        eventually("a change is told", noticed, within_s=20, every_s=0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert json.loads(b"".join(seen).splitlines()[0])["kind"] in ("created", "moved_to")


def test_variables_are_set_kept_and_taken_away(skerry: Run, told: Told, used: Sandbox) -> None:
    assert told("env", "set", "A=1", "B=x=y") == {"A": "1", "B": "x=y"}
    assert skerry("env", "set", "SECRET", SECRET="s").returncode == 0
    assert told("env", "ls", used.id) == {"A": "1", "B": "x=y", "SECRET": "s"}
    assert told("env", "unset", "A", "absent") == {"A": "1"}
    assert skerry("exec", "--", "sh", "-c", "echo $B$SECRET$A").stdout == b"x=ys\n"


def test_what_runs_listens_and_is_used_is_shown(skerry: Run, told: Told, used: Sandbox) -> None:
    running = used.commands.start("exec python3 -m http.server 8765")
    eventually("the port is told", lambda: 8765 in [one["port"] for one in told("ports")], within_s=20, every_s=0.2)
    assert any("8765" in one["argv"] for one in told("ps"))
    assert b"http.server" in skerry("ps").stdout
    assert told("metrics", used.id)["sandbox_id"] == used.id
    assert skerry("metrics", "--since", "60").stdout.startswith(b"UTC ")
    running.kill()


def test_logs_show_a_command_and_what_ran_last(skerry: Run, told: Told, used: Sandbox) -> None:
    none = skerry("logs")
    assert none.returncode == 1 and b"Nothing was run" in none.stderr
    running = used.commands.start("echo out; echo err >&2; read x < /dev/zero & sleep 1; echo late")
    done = skerry("logs", "-f", running.id)
    assert (done.stdout, done.stderr) == (b"out\nlate\n", b"err\n")
    assert skerry("logs", running.id).stdout == b"out\nlate\n"
    assert told("logs", running.id)["exit_code"] == 0
    assert skerry("logs").stdout == skerry("logs", "-f", used.id).stdout == b"out\nlate\n"
    assert [(one["id"], one["kind"], one["exit_code"]) for one in told("commands")] == [(running.id, "command", 0)]
    assert running.id.encode() in skerry("commands", "--status", "completed", "-n", "1").stdout
    assert told("commands", "--status", "running") == []


def test_the_startup_of_a_sandbox(skerry: Run, told: Told, used: Sandbox) -> None:
    assert skerry("startup", "set").returncode == skerry("startup", "run").returncode == 1
    assert told("startup", "set", "echo up; exit 3")["command"] == "echo up; exit 3"
    ran = skerry("startup", "run").stdout.decode().strip()
    assert skerry("logs", "-f", ran).stdout == b"up\n"
    # Nothing else was run in it.
    assert skerry("logs").stdout == b"up\n"
    eventually("it has failed", lambda: told("startup", "get")["status"] == "failed")
    assert b"echo up; exit 3" in skerry("startup", "get", used.id).stdout
    assert told("startup", "set", "--none")["configured"] is False


def test_a_session_keeps_directory_and_variables(skerry: Run, told: Told, used: Sandbox) -> None:
    session = skerry("session", "new").stdout.decode().strip()
    assert skerry("session", "exec", session, "--", "cd /tmp && export A=1").returncode == 0
    done = skerry("session", "exec", session, "--", "echo $A; pwd; echo err >&2; (exit 7)")
    assert (done.stdout, done.stderr, done.returncode) == (b"1\n/tmp\n", b"err\n", 7)
    assert skerry("session", "exec", session, "--", "echo", "$A").stdout == b"$A\n"
    assert told("session", "ls", used.id) == [{"id": session, "cwd": "/tmp"}]
    assert skerry("session", "exec", "--timeout", "1", session, "--", "sleep 60").returncode == 124
    assert told("session", "rm", session) == {"ended": session}
    absent = skerry("session", "exec", session, "--", "true")
    assert absent.returncode == 125 and session.encode() in absent.stderr


def test_git_ends_as_git_does_and_takes_its_token_from_no_argument(skerry: Run, used: Sandbox) -> None:
    setup = "git init -q --bare /srv/a.git && git -c init.defaultBranch=main init -q /workspace/w && cd /workspace/w"
    commit = "git -c user.name=t -c user.email=t@t commit -qm one --allow-empty && git remote add origin"
    used.commands.run(f"{setup} && {commit} http://127.0.0.1:9/a.git").check()
    refused = skerry("git", "clone", "http://127.0.0.1:9/a.git", stdin=b"")
    assert refused.returncode == 128 and b"127.0.0.1" in refused.stderr
    for verb in (["pull", "w"], ["push", "w"]):
        again = skerry("git", *verb, "--remote", "origin", "--branch", "main", "--token-stdin", stdin=b"s3cret\n")
        assert again.returncode not in (0, 2, 125) and again.stderr and b"s3cret" not in again.stderr
    both = skerry("git", "pull", "w", "--token-env", "GIT_TOKEN", "--token-stdin", stdin=b"x\n")
    unset = skerry("git", "pull", "w", "--token-env", "s3cret")
    empty = skerry("git", "pull", "w", "--token-stdin")
    for done in (both, unset, empty):
        assert done.returncode == 125 and b"oken" in done.stderr and b"s3cret" not in done.stderr
    assert skerry("git", "clone", "http://127.0.0.1:9/a.git", "--token", "s3cret").returncode == 2


def test_bash_completes_commands_and_sandboxes(environ: dict[str, str], work: Path, client: Skerry) -> None:
    with client.create("python", name="complete-me") as box:
        script = (
            'eval "$(skerry completion bash)"; COMP_WORDS=(skerry %s); COMP_CWORD=%d;'
            ' _skerry_completion skerry; echo "${COMPREPLY[@]}"'
        )

        def completed(words: str, at: int) -> str:
            done = subprocess.run(
                ["bash", "-c", script % (words, at)], env=environ, cwd=work, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        assert completed("met", 1) == "metrics"
        assert completed("exec complete-", 2) == "complete-me"
        assert completed("cp complete-", 2) == "complete-me:"
        assert box.id not in completed("exec complete-", 2)
