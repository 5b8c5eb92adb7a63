"""Using up what there is, from inside: processes, memory, processor, disk, files, descriptors."""

import errno
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from acceptance.hostile import (
    WORKSPACE_PROGRAM,
    answers,
    answers_or_says_why,
    arm,
    as_root_and_user,
    latencies_ms,
    true_once,
    watched,
)
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import GuestError, Sandbox, Skerry, SkerryError

pytestmark = pytest.mark.long


@pytest.fixture
def attacker(server: Server, client: Skerry) -> Iterator[Sandbox]:
    with watched(server, client, memory_mb=256, disk_mb=256) as box:
        arm(box)
        yield box


FILL_PROCESSES = """
import os, time
made = 0
try:
    while True:
        os.posix_spawnp("sleep", ["sleep", "100"], os.environ)
        made += 1
except OSError as error:
    print(made, error.errno, flush=True)
time.sleep(100)
"""


@on_both
@as_root_and_user
def test_processes_are_counted_and_a_kill_makes_room_again(
    server: Server, attacker: Sandbox, user: str, runtime: str
) -> None:
    holding = attacker.commands.start(["python3", "-c", FILL_PROCESSES], user=user, timeout_s=90)
    eventually("more are refused", lambda: holding.poll().stdout != "", within_s=60, every_s=0.3)
    made, error = map(int, holding.poll().stdout.split())
    assert error == errno.EAGAIN
    assert server.config.processes * 0.8 < made <= server.config.processes
    meanwhile = attacker.commands.run(["true"])
    assert meanwhile.ok or meanwhile.reason == "not_started", meanwhile
    holding.kill()
    holding.wait()
    answers(attacker)


@on_both
@as_root_and_user
def test_a_fork_bomb_leaves_a_sandbox_that_answers(attacker: Sandbox, user: str) -> None:
    attacker.commands.run([WORKSPACE_PROGRAM, "fork_bomb"], user=user, timeout_s=60)
    answers_or_says_why(attacker, ["oom"])


@on_both
@as_root_and_user
def test_an_endless_fork_bomb_ends_at_its_deadline(attacker: Sandbox, user: str) -> None:
    bomb = attacker.commands.run("b() { b | b & b; }; b", user=user, timeout_s=3)
    assert bomb.exit_code != 0 or attacker.refresh().status == "failed"
    answers_or_says_why(attacker, ["oom"])


HOGS = {
    "in small pieces": [WORKSPACE_PROGRAM, "memory_hog"],
    "in one growing piece": ["tail", "/dev/zero"],
    "python": ["python3", "-c", "held = []\nwhile True: held.append(bytearray(1 << 20))"],
}


@on_both
@as_root_and_user
@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS.keys())
def test_a_memory_hog_is_told_as_oom_and_the_files_are_kept(
    server: Server, attacker: Sandbox, user: str, runtime: str, hog: list[str]
) -> None:
    """The kernel picks the victim: the hog alone, or with gVisor now and then the sandbox as a whole."""
    attacker.files.write("kept", b"of value")
    bystander = attacker.commands.start("sleep 300")
    ended = attacker.commands.run(hog, user=user)
    assert (ended.status, ended.exit_code, ended.reason) == ("failed", None, "oom"), ended
    assert "memory" in (ended.message or "") or "oom" in (ended.message or "")
    if runtime == "crun":
        assert ended.signal == 9
    answers_or_says_why(attacker, ["oom"])
    if runtime == "crun" or attacker.refresh().status != "failed":
        assert attacker.files.read("kept") == b"of value"
        assert bystander.poll().running
        return
    assert attacker.info.reason == "oom"
    assert "memory" in (attacker.info.message or "")
    assert bystander.wait().reason == "oom"
    with pytest.raises(SkerryError, match="oom"):
        attacker.commands.run("true")
    on_disk = list((server.config.pool_dir / "sandboxes").glob(f"{attacker.id}/workspace/kept"))
    assert [path.read_bytes() for path in on_disk] == [b"of value"]


@on_both
def test_a_command_that_fails_by_itself_is_not_told_as_oom(attacker: Sandbox) -> None:
    """Though a hog died a moment before: exit code 1 is what gVisor shows for one, and what much else ends with."""
    attacker.commands.run(f"{WORKSPACE_PROGRAM} memory_hog; true")
    if attacker.refresh().status == "failed":
        pytest.skip("the hog took its sandbox along")
    result = attacker.commands.run(["false"])
    assert (result.status, result.exit_code, result.reason) == ("completed", 1, None)


@on_both
@as_root_and_user
def test_a_processor_hog_gets_its_share_and_the_neighbour_answers(
    server: Server, client: Skerry, user: str, runtime: str
) -> None:
    with client.create("python", cpu_millis=400) as hog, client.create("python") as neighbour:
        arm(hog)
        idle = latencies_ms(lambda: true_once(neighbour), 40)
        running = hog.commands.start([WORKSPACE_PROGRAM, "cpu_hog"], user=user)
        busy = latencies_ms(lambda: true_once(neighbour), 40)
        result = running.wait()
        assert result.exit_code == 0
        assert busy[-1] < 1500, (runtime, idle[20], busy)
        assert busy[20] < 3 * idle[20] + 60, (runtime, idle[20], busy[20])
        answers(hog)


@on_both
@as_root_and_user
@pytest.mark.parametrize("where", ["/workspace", "/tmp"])
def test_f24_a_full_disk_is_full_inside_alone_and_deleting_makes_room(attacker: Sandbox, user: str, where: str) -> None:
    attacker.commands.run(f"chmod 777 {where}").check()
    fill = attacker.commands.run(f"head -c 400M /dev/urandom > {where}/fill; echo ended", user=user, timeout_s=120)
    assert fill.stdout == "ended\n"
    assert "quota" in fill.stderr.lower() or "space" in fill.stderr.lower(), fill.stderr
    with pytest.raises(GuestError) as refused:
        attacker.files.write("more", b"x" * 8_000_000)
    assert refused.value.code in ("quota", "no_space")
    answers(attacker)
    assert not attacker.files.exists("more")
    attacker.files.remove(f"{where}/fill")
    eventually("there is room again", lambda: _takes(attacker, 8_000_000), within_s=60, every_s=0.5)


def _takes(box: Sandbox, size_bytes: int) -> bool:
    try:
        box.files.write("more", b"x" * size_bytes)
    except GuestError:
        return False
    return True


MAKE_FILES = """
import os, sys
made = 0
try:
    for number in range(60_000):
        if number % 500 == 0:
            os.mkdir(f"d{number}")
        os.close(os.open(f"d{number - number % 500}/{number}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    print(made, error.errno)
"""


@on_both
@as_root_and_user
def test_too_many_files_are_refused_and_deleting_makes_room(server: Server, attacker: Sandbox, user: str) -> None:
    """More files than `inodes` are refused, not at once but soon: the node looks every few seconds."""
    attacker.commands.run("mkdir -m 777 many").check()

    def refused() -> bool:
        script = MAKE_FILES.replace('"d{', '"' + str(rounds) + "d{")
        made = attacker.commands.run(["python3", "-c", script], cwd="/workspace/many", user=user)
        return made.exit_code == 0 and made.stdout.split()[1:] in (["122"], ["28"])

    rounds = 0
    for rounds in range(20):  # noqa: B007
        if refused():
            break
    else:
        raise AssertionError("files beyond the limit are not refused")
    answers(attacker)
    attacker.files.remove("many", recursive=True)
    eventually("there is room again", lambda: _takes(attacker, 100_000), within_s=60, every_s=0.5)


HOLD = {
    "descriptors": "import os\nheld=[]\nwhile True: held.append(os.open('/', os.O_RDONLY))",
    "pipes": "import os\nheld=[]\nwhile True: held.append(os.pipe())",
    "sockets": "import socket\nheld=[]\nwhile True: held.append(socket.socketpair())",
    "threads": (
        "import threading,time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    ),
    "inotify": (
        "import ctypes,os\nlibc=ctypes.CDLL(None, use_errno=True)\n"
        "while True:\n"
        " if libc.inotify_init1(0) < 0: raise OSError(ctypes.get_errno(), 'inotify')\n"
    ),
    "watches": (
        "import ctypes,os\nlibc=ctypes.CDLL(None, use_errno=True)\nfd=libc.inotify_init1(0)\n"
        "os.makedirs('/tmp/w', exist_ok=True)\n"
        "for n in range(20000):\n"
        " p=f'/tmp/w/{os.getpid()}-{n}'; os.mkdir(p)\n"
        " if libc.inotify_add_watch(fd, p.encode(), 2) < 0: raise OSError(ctypes.get_errno(), 'watch')\n"
        "raise OSError(0, 'as many as wanted')"
    ),
}


@on_both
@as_root_and_user
@pytest.mark.parametrize("program", HOLD.values(), ids=HOLD.keys())
def test_using_up_a_table_of_the_kernel_stays_inside(attacker: Sandbox, user: str, program: str) -> None:
    """Four processes at once take all they get and keep it, for as long as they are let."""
    told = "except Exception as e: print(type(e).__name__, flush=True)"
    wrapped = f"import time\ntry:\n exec({program!r})\n{told}\ntime.sleep(20)"
    attacker.files.write("/tmp/hold.py", wrapped, mode="0644")
    holding = [attacker.commands.start(["python3", "/tmp/hold.py"], user=user, timeout_s=60) for _ in range(4)]
    full_at = time.monotonic() + 30
    while not all(command.poll().stdout or not command.poll().running for command in holding):
        if time.monotonic() > full_at or attacker.refresh().status == "failed":
            break  # a table without a limit of its own: the memory limit or the deadline ends it
        time.sleep(0.3)
    answers_or_says_why(attacker, ["oom"])
    for command in holding:
        with suppress(SkerryError):  # the sandbox may have died meanwhile; that is looked at below
            command.kill()
    answers_or_says_why(attacker, ["oom"])


@on_both
def test_shared_memory_is_bounded_by_the_memory_limit(attacker: Sandbox) -> None:
    attacker.commands.run("head -c 400M /dev/zero > /dev/shm/fill", timeout_s=60)
    answers_or_says_why(attacker, ["oom"])
