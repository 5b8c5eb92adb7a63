"""`exec -it` and `shell` against a real server, before a terminal of their own."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from acceptance.pty_program import Seat
from acceptance.servers import Server, eventually

from skerry import Sandbox, Skerry

Sit = Callable[..., Seat]


@pytest.fixture
def sit(server: Server, tmp_path: Path) -> Sit:
    def begin(*words: str, **size: int) -> Seat:
        return Seat("skerry", *words, env=server.environ, cwd=tmp_path, **size)

    return begin


def test_exec_it_is_a_terminal_of_this_ones_size_and_passes_the_exit_code(sit: Sit, sandbox: Sandbox) -> None:
    with sit("exec", "-it", sandbox.id, "--", "sh", "-c", "stty size; read x; exit $x", cols=101, rows=33) as seat:
        seat.sees("33 101\r\n")
        seat.types("7\r")
        assert seat.ends() == 7
        assert seat.is_as_before


def test_what_ends_at_once_is_shown_and_its_exit_code_passed(sit: Sit, sandbox: Sandbox) -> None:
    """Often before the size of this terminal could be passed on."""
    for code in range(6):
        with sit("exec", "-it", sandbox.id, "--", "sh", "-c", f"echo done; exit {code}") as seat:
            assert seat.ends() == code
            assert b"done" in seat.seen


def test_a_shell_takes_keys_and_ctrl_c_interrupts_what_runs_in_it(sit: Sit, sandbox: Sandbox) -> None:
    with sit("shell", sandbox.id) as seat:
        # Said by what is to be interrupted: gVisor loses a signal that comes while the shell hands the terminal over.
        seat.types("sh -c 'echo be\"\"gun; exec sleep 1000'\r")
        seat.sees("begun")
        seat.types("\x03")
        seat.types("echo go''es on\r")
        seat.sees("goes on")
        seat.types("exit 3\r")
        assert seat.ends() == 3
        assert seat.is_as_before


def test_a_new_size_of_this_terminal_reaches_the_one_inside(sit: Sit, sandbox: Sandbox) -> None:
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    with sit("exec", "-it", sandbox.id, "--", "sh", "-c", script) as seat:
        seat.sees("ready")
        seat.resize(120, 40)
        seat.sees("40 120")


def test_the_escape_keys_leave_a_terminal_that_goes_on_and_is_found_again(sit: Sit, sandbox: Sandbox) -> None:
    with sit("shell", sandbox.id) as seat:
        seat.types("X=kept; echo set''\r")
        seat.sees("set\r\n")
        seat.types("~?")
        seat.sees("~. leave")
        seat.types("\r~.")
        assert seat.ends() == 0
        assert seat.is_as_before
        assert b"--attach cmd_" in seat.seen
        terminal = seat.seen.split(b"--attach ")[1].split()[0].decode()
    with sit("shell", sandbox.id, "--attach", terminal) as seat:
        seat.types("echo $X''!\r")
        seat.sees("kept!")
        seat.types("exit\r")
        assert seat.ends() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_here_and_inside_and_puts_the_terminal_back(
    sit: Sit, sandbox: Sandbox, number: signal.Signals
) -> None:
    with sit("exec", "-it", sandbox.id, "--", "sh", "-c", "echo ready; sleep 1000") as seat:
        seat.sees("ready")
        seat.process.send_signal(number)
        assert seat.ends() == 130
        assert seat.is_as_before
    eventually("it has ended inside", lambda: not sandbox.terminals.list())


def test_a_sandbox_that_is_destroyed_ends_it_with_a_message(sit: Sit, client: Skerry) -> None:
    with client.create("python") as box, sit("shell", box.id) as seat:
        seat.types("echo rea''dy\r")
        seat.sees("ready")
        box.destroy()
        assert seat.ends() == 125
        assert seat.is_as_before
        assert b"Traceback" not in seat.seen


def test_a_terminal_outlives_a_restart_of_the_server(sit: Sit, server: Server, sandbox: Sandbox) -> None:
    with sit("shell", sandbox.id) as seat:
        seat.types("X=kept; echo rea''dy\r")
        seat.sees("ready")
        server.restarted("api", server.kill("api"))
        seat.types("echo $X''!\r")
        seat.sees("kept!")
        seat.types("exit\r")
        assert seat.ends() == 0


def test_many_bytes_pasted_at_once_arrive_whole(sit: Sit, sandbox: Sandbox) -> None:
    with sit("exec", "-it", sandbox.id, "--", "sh", "-c", "stty raw -echo; echo ready; head -c 200000 | wc -c") as seat:
        seat.sees("ready")
        for _ in range(50):
            seat.types("x" * 4000)
        seat.sees("200000")
        assert seat.ends() == 0


def test_without_a_terminal_here_it_says_so(server: Server, sandbox: Sandbox) -> None:
    shell = ["shell", sandbox.id], b"A shell needs a terminal here"
    command = ["exec", "-it", sandbox.id, "--", "sh"], b"no terminal here"
    for words, said in (shell, command):
        done = subprocess.run(["skerry", *words], env=server.environ, stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 125
        assert said in done.stderr
