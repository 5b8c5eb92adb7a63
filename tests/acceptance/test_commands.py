"""Commands through the public client, on real sandboxes."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import CommandFailed, Lost, Output, Sandbox, Skerry


@on_both
def test_f32_stdout_and_stderr_come_apart_and_byte_exact(sandbox: Sandbox) -> None:
    out, err = bytes(range(256)) * 3, b"\xff\x00\xc3\x28err"
    script = (
        f"printf %s {base64.b64encode(out).decode()} | base64 -d;"
        f"printf %s {base64.b64encode(err).decode()} | base64 -d >&2"
    )
    result = sandbox.commands.run(script)
    assert (result.stdout_bytes, result.stderr_bytes, result.exit_code) == (out, err, 0)


@on_both
def test_f32_a_nonzero_exit_is_completed_with_its_code(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("exit 5")
    assert (result.status, result.exit_code, result.signal) == ("completed", 5, None)
    with pytest.raises(CommandFailed, match="exit code 5"):
        result.check()


@on_both
def test_f32_a_kill_is_told_as_a_signal(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("kill -9 $$")
    assert (result.status, result.exit_code, result.signal) == ("failed", None, 9)


@on_both
def test_f32_a_program_with_arguments_meets_no_shell(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["printf", "%s|", "a b", "$HOME", "*", "'"])
    assert result.stdout == "a b|$HOME|*|'|"


@on_both
def test_f3_the_working_directory_is_the_workspace(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("pwd").stdout == "/workspace\n"


@on_both
def test_a_heredoc_reaches_the_shell(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat <<'END'\n$one\n\ttwo\nEND\n").stdout == "$one\n\ttwo\n"


@on_both
def test_without_stdin_a_reader_meets_the_end_at_once(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("cat; echo done", timeout_s=10).stdout == "done\n"


@on_both
def test_given_stdin_is_read_to_its_end(sandbox: Sandbox) -> None:
    text = "zwölf Boxkämpfer\n" * 10_000
    assert sandbox.commands.run(["cat"], stdin=text).stdout == text


@on_both
def test_a_background_child_that_holds_the_pipes_does_not_hold_the_command(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    result = sandbox.commands.run("sleep 30 & echo started", timeout_s=25)
    assert (result.stdout, result.exit_code) == ("started\n", 0)
    assert time.monotonic() - begun < 10


@on_both
def test_a_normal_end_leaves_servers_running(sandbox: Sandbox) -> None:
    sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &").check()
    ask = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000').status)\""
    eventually("the server inside answers", lambda: sandbox.commands.run(ask).stdout == "200\n", within_s=20)


@on_both
@pytest.mark.parametrize(
    "command",
    [
        "echo partial; sleep 313 & setsid sleep 313 & wait",
        "echo partial; (setsid sh -c 'sleep 313 & sleep 313' &) ; sleep 313",
    ],
    ids=["setsid", "orphan"],
)
def test_f25_a_deadline_reaches_every_descendant(sandbox: Sandbox, command: str) -> None:
    result = sandbox.commands.run(command, timeout_s=1)
    assert (result.status, result.stdout) == ("timeout", "partial\n")
    alive = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 31[3]'"
    eventually("nobody is alive", lambda: sandbox.commands.run(alive).stdout == "0\n", within_s=1.5)


@on_both
def test_f32_output_streams_while_the_command_runs(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo /workspace/gate").check()
    running = sandbox.commands.start("echo first; read line < /workspace/gate; echo second $line")
    seen: list[bytes] = []
    for event in running.events():
        assert isinstance(event, Output)
        if not seen:
            sandbox.commands.run("echo opened > /workspace/gate", timeout_s=5)
        seen.append(event.data)
    assert b"".join(seen) == b"first\nsecond opened\n"
    assert running.wait().exit_code == 0


@on_both
def test_f32_a_command_is_found_again_by_its_id(client: Skerry, sandbox: Sandbox) -> None:
    first = sandbox.commands.run("echo kept; echo err >&2; exit 3")
    again = sandbox.commands.get(first.id).poll()
    assert (again.stdout, again.stderr, again.exit_code) == ("kept\n", "err\n", 3)


@on_both
def test_50_megabytes_of_output_are_read_by_offset_in_flat_memory(server: Server, sandbox: Sandbox) -> None:
    before = {part: server.memory_of(part) for part in ("api", "node")}
    running = sandbox.commands.start("head -c 52428800 /dev/zero | tr '\\0' x")
    total = 0
    for event in running.events():
        assert isinstance(event, Output)
        assert event.data.count(b"x") == len(event.data)
        total += len(event.data)
    assert total == 52_428_800
    for part, then in before.items():
        assert server.memory_of(part) - then < 30 << 20, f"{part} grew with the output"
    tail = b"".join(e.data for e in running.events(offset=total - 10) if isinstance(e, Output))
    assert tail == b"x" * 10


@on_both
def test_output_beyond_the_cap_is_told_exactly(server: Server, sandbox: Sandbox) -> None:
    cap = server.config.output_cap_mb << 20
    running = sandbox.commands.start(f"head -c {cap + 12345} /dev/zero")
    kept = lost = 0
    for event in running.events():
        if isinstance(event, Lost):
            lost += event.length
        else:
            kept += len(event.data)
    assert kept + lost == cap + 12345
    assert cap - 65_536 < kept <= cap  # what the spool notes beside the bytes counts too
    assert running.wait().lost_bytes == lost


@on_both
def test_a_client_that_vanishes_kills_nothing_and_comes_back_by_offset(server: Server, sandbox: Sandbox) -> None:
    running = sandbox.commands.start("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done")
    with server.client() as other:
        first = next(iter(other.get(sandbox.id).commands.get(running.id).events()))
        assert isinstance(first, Output)
    rest = b"".join(e.data for e in running.events(offset=first.end) if isinstance(e, Output))
    assert (first.data + rest).decode() == "".join(f"line {i}\n" for i in range(1, 7))


@on_both
def test_kill_ends_a_command_and_its_descendants(sandbox: Sandbox) -> None:
    running = sandbox.commands.start("sleep 317 & setsid sleep 317 & wait")
    running.kill()
    result = running.wait()
    assert (result.status, result.signal) == ("failed", 9)
    alive = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 31[7]'"
    eventually("nobody is alive", lambda: sandbox.commands.run(alive).stdout == "0\n")


@on_both
def test_200_commands_at_once_over_10_sandboxes(client: Skerry) -> None:
    boxes = [client.create("python", memory_mb=128) for _ in range(10)]
    try:

        def one(number: int) -> str:
            return boxes[number % 10].commands.run(["sh", "-c", f"echo {number}; exit {number % 7}"]).stdout

        with ThreadPoolExecutor(200) as pool:
            assert list(pool.map(one, range(200))) == [f"{number}\n" for number in range(200)]
    finally:
        for box in boxes:
            box.destroy()


@on_both
def test_f32_a_program_that_is_not_there_is_failed_with_a_reason(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(["/no/such/program"])
    assert (result.status, result.exit_code, result.reason) == ("failed", None, "not_started")
    assert "/no/such/program" in (result.message or "")
