"""Commands: what they are given, what comes out, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from sbxd.client import CONTROL, DATA, EOF, WINDOW, Client, Daemon, children_of, descendants_of, is_alive, until


def test_a_command_tells_its_output_and_its_exit_code(client: Client) -> None:
    result = client.run("a", "echo out; echo err >&2; exit 5")
    assert (result.out, result.err) == (b"out\n", b"err\n")
    assert (result.exit["code"], result.exit["signal"], result.exit["timeout"]) == (5, None, False)
    assert result.exit["offset"] == 8
    assert result.closed == {}


def test_argv_is_run_without_a_shell(client: Client) -> None:
    assert client.run("a", argv=["printf", "%s|", "a b", "$HOME", "", "-n"]).out == b"a b|$HOME||-n|"


def test_started_names_the_process_that_runs(client: Client) -> None:
    result = client.run("a", "echo $$")
    assert int(result.out) == result.event("started")["pid"]


def test_output_is_exact_to_the_byte(client: Client, tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000 + "é🏝".encode()[:-1] + b"\0\xff\xfe"
    (tmp_path / "bytes").write_bytes(content)
    result = client.run("a", argv=["cat", str(tmp_path / "bytes")])
    assert result.out == content
    assert result.exit["offset"] == len(content)


def test_both_channels_are_counted_in_one_offset_and_stay_apart(client: Client) -> None:
    result = client.run("a", "for i in $(seq 300); do printf o; printf e >&2; done; seq 50000; seq 20000 >&2")
    numbers = "".join(f"{i}\n" for i in range(1, 50001)).encode()
    errors = "".join(f"{i}\n" for i in range(1, 20001)).encode()
    assert result.out == b"o" * 300 + numbers
    assert result.err == b"e" * 300 + errors
    assert result.exit["offset"] == len(result.out) + len(result.err)


def test_a_heredoc_with_hard_characters_reaches_the_shell(client: Client) -> None:
    text = 'it\'s "$x" `y` \\ % 🏝\nsecond'
    assert client.run("a", f"cat <<'END'\n{text}\nEND").out == (text + "\n").encode()


def test_the_shell_is_bash_where_there_is_one(client: Client) -> None:
    if not Path("/bin/bash").exists():
        pytest.skip("this host has no bash")
    assert client.run("a", "shopt -qo posix && echo posix; a=(1 2); echo ${#a[@]}").out == b"2\n"


def test_stdin_not_asked_for_is_empty(client: Client) -> None:
    result = client.run("a", "cat; readlink /proc/self/fd/0")
    assert result.out == b"/dev/null\n"


def test_stdin_is_passed_on_and_closed(client: Client) -> None:
    stream = client.exec("a", "wc -c; exit 3", stdin=True)
    client.send(DATA, stream, b"x" * 1000)
    client.send(DATA, stream, b"\0\xff")
    client.send(EOF, stream)
    result = client.finish(stream)
    assert (result.out.strip(), result.exit["code"]) == (b"1002", 3)


def test_stdin_larger_than_the_window_flows_with_credit(client: Client) -> None:
    stream = client.exec("a", "sleep 0.2; sha256sum | cut -c1-8", stdin=True)
    client.event(stream, "started")
    sent, allowed, total = 0, WINDOW, 3_000_000
    while sent < total:
        if allowed == 0:
            frame = client.next(stream)
            allowed += int.from_bytes(frame.payload, "little")
            continue
        n = min(allowed, 65536, total - sent)
        client.send(DATA, stream, b"z" * n)
        sent, allowed = sent + n, allowed - n
    client.send(EOF, stream)
    import hashlib

    assert client.finish(stream).out.strip().decode() == hashlib.sha256(b"z" * total).hexdigest()[:8]


def test_stdin_for_a_program_that_does_not_read_is_swallowed(client: Client) -> None:
    stream = client.exec("a", "exec <&-; echo closed; sleep 0.3", stdin=True)
    client.read_until(stream, b"closed\n")
    client.send(DATA, stream, b"x" * WINDOW)
    client.send(EOF, stream)
    assert client.finish(stream).exit["code"] == 0


def test_a_signal_is_told_as_a_signal(client: Client) -> None:
    result = client.run("a", "kill -SEGV $$")
    assert (result.exit["code"], result.exit["signal"]) == (None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"argv": ["no-such-program"]}, "not_found"),
        ({"argv": ["/no/such/program"]}, "not_found"),
        ({"argv": [""]}, "not_found"),
        ({"argv": ["/etc/passwd"]}, "permission"),
        ({"argv": ["true"], "cwd": "/no/such/place"}, "cwd"),
        ({"argv": ["true"], "cwd": "/etc/passwd"}, "cwd"),
        ({"argv": ["true"], "user": "no-such-user"}, "user"),
        ({"argv": ["true"], "user": "root:no-such-group"}, "user"),
        ({"argv": ["true"], "user": "4294967295"}, "user"),
        ({"argv": ["true"], "user": ""}, "user"),
        ({"argv": []}, "invalid"),
        ({"argv": ["a\0b"]}, "invalid"),
        ({"argv": [1]}, "invalid"),
        ({"argv": "true"}, "invalid"),
        ({}, "invalid"),
        ({"argv": ["true"], "shell": "true"}, "invalid"),
        ({"shell": "a\0b"}, "invalid"),
        ({"argv": ["true"], "cwd": "relative"}, "invalid"),
        ({"argv": ["true"], "env": {"A=B": "x"}}, "invalid"),
        ({"argv": ["true"], "env": {"": "x"}}, "invalid"),
        ({"argv": ["true"], "env": {"A": 1}}, "invalid"),
        ({"argv": ["true"], "env": ["A"]}, "invalid"),
        ({"argv": ["true"], "stdin": 1}, "invalid"),
        ({"argv": ["true"], "tty": True}, "invalid"),
        ({"argv": ["true"], "tty": {"cols": -1}}, "invalid"),
        ({"argv": ["true"], "tty": {"cols": 70000}}, "invalid"),
        ({"argv": ["true"], "deadline_ms": 0}, "invalid"),
        ({"argv": ["true"], "deadline_ms": -5}, "invalid"),
        ({"argv": ["true"], "deadline_ms": 1.5}, "invalid"),
        ({"argv": ["true"], "cwd_fallback": "yes"}, "invalid"),
    ],
)
def test_what_cannot_be_started_says_why(client: Client, members: dict[str, object], code: str) -> None:
    result = client.run("a", **members)  # pyright: ignore[reportArgumentType]
    assert result.events == []
    assert result.code == code
    # The id is free again, and the keeper too.
    assert client.run("a", "echo ok").out == b"ok\n"


@pytest.mark.parametrize("bad_id", ["", "x" * 65, "a/b", "ü", 5, None])
def test_an_id_of_another_shape_is_refused(client: Client, bad_id: object) -> None:
    assert client.ask("exec", id=bad_id, argv=["true"], cwd="/").code == "invalid"


def test_a_known_id_is_refused_until_it_is_forgotten(client: Client) -> None:
    client.run("a", "true")
    assert client.run("a", "true").code == "exists"
    assert client.ask("forget", id="a").closed == {}
    assert client.run("a", "true").exit["code"] == 0


def test_a_missing_directory_falls_back_to_the_root_when_asked(client: Client) -> None:
    assert client.run("a", "pwd", cwd="/no/such", cwd_fallback=True).out == b"/\n"


def test_env_is_laid_over_the_configured_one(client: Client) -> None:
    base = {"PATH": os.environ["PATH"], "A": "1", "B": "two words", "C": "🏝\udcff"}
    assert client.ask("configure", env=base).closed == {}
    result = client.run("a", argv=["env", "-0"], env={"A": "over", "D": ""})
    got = set(result.out.split(b"\0")[:-1])
    assert {b"A=over", b"B=two words", b"C=" + "🏝".encode() + b"\xff", b"D=", b"HOME=/root"} <= got
    assert not {b"A=1"} & got


def test_the_configured_directory_is_the_default(client: Client, tmp_path: Path) -> None:
    client.ask("configure", cwd=str(tmp_path))
    stream = client.open("exec", id="a", argv=["pwd"])
    assert client.finish(stream).out.decode().strip() == str(tmp_path)


def test_a_bad_configuration_changes_nothing(client: Client, tmp_path: Path) -> None:
    client.ask("configure", cwd=str(tmp_path))
    assert client.ask("configure", cwd="relative", env={"X": "1"}).code == "invalid"
    assert client.ask("configure", env={"X": 1}, cwd="/").code == "invalid"
    stream = client.open("exec", id="a", shell="pwd; echo ${X-unset}")
    assert client.finish(stream).out.decode().split() == [str(tmp_path), "unset"]


def test_a_user_by_name_gets_its_ids_groups_and_home(client: Client) -> None:
    wanted = subprocess.run(["id", "nobody"], capture_output=True, check=True).stdout
    home = next(
        line.split(":")[5] for line in Path("/etc/passwd").read_text().splitlines() if line.startswith("nobody:")
    )
    result = client.run("a", "id; echo $HOME", user="nobody")
    assert result.out == wanted + home.encode() + b"\n"


def test_a_user_by_number_need_not_be_known(client: Client) -> None:
    assert client.run("a", "id -u; id -g; id -G; echo $HOME", user="54321").out == b"54321\n0\n0\n/\n"
    assert client.run("b", "id -u; id -g; id -G", user="54321:777").out == b"54321\n777\n777\n"


def test_signals_reach_the_scope_they_name(client: Client) -> None:
    script = "trap 'echo main' USR1; (trap 'echo sub; exit' USR1; echo ready; while :; do sleep 0.02; done) & " + (
        "while :; do sleep 0.02; done"
    )
    stream = client.exec("a", script)
    client.read_until(stream, b"ready\n")
    client.send_json(CONTROL, stream, {"signal": signal.SIGUSR1, "scope": "main"})
    assert client.read_until(stream, b"main\n") == b"main\n"
    client.send_json(CONTROL, stream, {"signal": signal.SIGKILL, "scope": "tree"})
    assert client.finish(stream).exit["signal"] == 9


def test_a_group_signal_reaches_the_children_of_the_main_process(client: Client) -> None:
    stream = client.exec(
        "a", "sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.02; done' & wait; wait"
    )
    client.read_until(stream, b"ready\n")
    client.send_json(CONTROL, stream, {"signal": signal.SIGTERM, "scope": "group"})
    assert client.finish(stream).exit["signal"] == signal.SIGTERM


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"signal": 0},
        {"signal": 65},
        {"signal": 15, "scope": "all"},
        {"resize": {"cols": 1, "rows": 1}},
        {"kill": 1},
    ],
)
def test_a_control_that_cannot_be_done_is_refused_and_harms_nothing(
    client: Client, request_: dict[str, object]
) -> None:
    stream = client.exec("a", "sleep 0.1; echo alive")
    client.event(stream, "started")
    client.send_json(CONTROL, stream, request_)
    assert client.event(stream, "refused")["error"]["code"] == "invalid"
    assert client.finish(stream).out == b"alive\n"


LONG_LIVED = "sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 & sleep 300' &) ; echo up; wait"


def descendants(daemon: Daemon) -> list[int]:
    """Every process below the keepers."""
    return descendants_of(daemon.keepers())


def test_a_deadline_leaves_nobody_alive(daemon: Daemon, client: Client) -> None:
    start = time.monotonic()
    stream = client.exec("a", LONG_LIVED, deadline_ms=400)
    client.read_until(stream, b"up\n")
    result = client.finish(stream)
    assert (result.exit["timeout"], result.exit["signal"], result.exit["code"]) == (True, 9, None)
    assert 0.4 <= time.monotonic() - start < 5
    assert descendants(daemon) == []


def test_kill_reaches_every_descendant(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", LONG_LIVED)
    client.read_until(stream, b"up\n")
    until(lambda: len(descendants(daemon)) >= 6)
    client.send_json(CONTROL, stream, {"kill": True})
    assert client.finish(stream).exit["signal"] == 9
    assert descendants(daemon) == []


BOMB = """
import os, resource
resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
os.setuid(54322)
print("up", flush=True)
while True:
    try:
        os.fork()
        os.setsid()
    except OSError:
        pass
"""


def test_kill_beats_a_fork_bomb(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", argv=["python3", "-c", BOMB])
    client.read_until(stream, b"up\n")
    until(lambda: len(descendants(daemon)) > 50)
    client.send_json(CONTROL, stream, {"kill": True})
    assert client.finish(stream).exit["signal"] == 9
    until(lambda: descendants(daemon) == [])
    assert client.run("b", "echo fine").out == b"fine\n"


def test_a_normal_end_leaves_the_background_running(daemon: Daemon, client: Client) -> None:
    start = time.monotonic()
    result = client.run("a", "sleep 300 & echo $!")
    assert time.monotonic() - start < 5, "a background process that holds the pipes held up the end"
    assert result.exit["code"] == 0
    assert is_alive(int(result.out))
    client.ask("forget", id="a")
    assert is_alive(int(result.out))


def test_a_background_writer_lives_on_after_the_end(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"(for i in $(seq 30); do seq 5000; done; echo survived > {mark}) & echo out"
    result = client.run("a", script)
    assert result.exit["code"] == 0
    until(lambda: mark.exists() and mark.read_text() == "survived\n")


def test_signals_still_reach_what_a_detached_main_left_behind(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "setsid sleep 300 & echo $!; yes | head -c 100000")
    pid = int(client.read_until(stream, b"\n").split(b"\n")[0])
    client.send_json(CONTROL, stream, {"kill": True})
    client.finish(stream)
    until(lambda: not is_alive(pid))


def test_a_killed_keeper_is_told_honestly(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "sleep 300 & echo $PPID; sleep 300")
    keeper = int(client.read_until(stream, b"\n"))
    os.kill(keeper, signal.SIGKILL)
    result = client.finish(stream)
    assert (result.exit["code"], result.exit["signal"], result.exit["timeout"]) == (None, 9, False)
    until(lambda: children_of(daemon.process.pid) == daemon.keepers() and keeper not in daemon.keepers())
    assert client.run("b", "exit 4").exit["code"] == 4


def test_a_keeper_killed_after_the_end_loses_no_exit_code(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "echo $PPID; exit 7")
    frame = client.next(stream)
    while frame.type != DATA:
        frame = client.next(stream)
    until(lambda: client.ask("commands").closed["commands"][0]["running"] is False)
    os.kill(int(frame.payload), signal.SIGKILL)
    client.credit(stream, len(frame.payload))
    assert client.finish(stream).exit["code"] == 7


def test_spare_keepers_killed_while_idle_are_replaced(daemon: Daemon, client: Client) -> None:
    for pid in daemon.keepers():
        os.kill(pid, signal.SIGKILL)
    for i in range(3):
        result = client.run(f"c{i}", "echo ok")
        # The first may have been given to a keeper whose death was not seen yet: then that is said.
        assert result.out == b"ok\n" or result.code == "limit"
    assert client.run("last", "echo ok").out == b"ok\n"


def test_a_stopped_keeper_does_not_outlive_a_kill(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "echo $PPID; sleep 300")
    os.kill(int(client.read_until(stream, b"\n")), signal.SIGSTOP)
    client.send_json(CONTROL, stream, {"kill": True})
    assert client.finish(stream).exit["signal"] == 9


def test_children_inherit_nothing_of_sbxd(client: Client) -> None:
    result = client.run("a", argv=["ls", "/proc/self/fd"])
    assert result.out.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls reading the directory
    status = client.run("b", argv=["grep", "-E", "^Sig(Blk|Ign)|^NoFile", "/proc/self/status"]).out.decode()
    assert [line.split()[1] for line in status.splitlines()] == ["0" * 16, "0" * 16]


def test_commands_lists_what_is_known(client: Client) -> None:
    done = client.run("done", "echo x")
    stream = client.exec("going", "echo y; sleep 300")
    client.read_until(stream, b"y\n")
    listed = {c["id"]: c for c in client.ask("commands").closed["commands"]}
    assert listed["done"] == {
        "id": "done", "pid": done.event("started")["pid"], "running": False, "acked": 2, "offset": 2
    }  # fmt: skip
    assert listed["going"]["running"] is True
    assert client.ask("forget", id="going").code == "busy"
    assert client.ask("forget", id="unknown").closed == {}


def test_two_hundred_commands_at_once(client: Client) -> None:
    streams = [client.exec(f"c{i}", f"echo {i}; exit {i % 100}") for i in range(200)]
    for i, stream in enumerate(streams):
        result = client.finish(stream, 60)
        assert (result.out, result.exit["code"]) == (f"{i}\n".encode(), i % 100)


def test_ended_records_are_dropped_oldest_first(client: Client) -> None:
    for i in range(1030):
        client.run(f"c{i}", argv=["true"])
    known = [c["id"] for c in client.ask("commands").closed["commands"]]
    assert known == [f"c{i}" for i in range(6, 1030)]


def test_a_command_too_many_is_refused(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    streams = [client.exec(f"c{i}", argv=["cat", str(gate)]) for i in range(513)]
    assert client.finish(streams[-1], 60).code == "limit"
    with gate.open("wb"):
        for stream in streams[:-1]:
            client.event(stream, "started")
    for stream in streams[:-1]:
        assert client.finish(stream, 60).exit["code"] == 0


def test_large_requests_are_run_or_refused_whole(client: Client) -> None:
    many = [f"{i}" for i in range(20000)]
    assert client.run("many", argv=["echo", *many]).out == " ".join(many).encode() + b"\n"
    assert client.run("long", argv=["echo", "x" * 120_000]).out == b"x" * 120_000 + b"\n"
    # One argument of more than 128 KiB is more than Linux takes.
    assert client.run("too-long", argv=["echo", "x" * 200_000]).code == "limit"
    assert client.run("env", argv=["true"], env={f"V{i}": "x" for i in range(4097)}).code == "invalid"
    assert client.run("small", "echo $#; env | wc -l", env={"A": "1"}).exit["code"] == 0
