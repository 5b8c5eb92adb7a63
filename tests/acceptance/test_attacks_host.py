"""Reaching the host and its kernel, from inside, through the whole product; and taking sbxd apart."""

from collections.abc import Iterator

import pytest
from acceptance.hostile import (
    WORKSPACE_PROGRAM,
    answers,
    answers_or_says_why,
    arm,
    as_root_and_user,
    watched,
)
from acceptance.marks import on_both
from acceptance.servers import Server, eventually
from node.test_hardening import ALL_ATTACKS, ONLY_INSIDE_GVISOR, ROOTS_OWN

from skerry import Sandbox, Skerry, SkerryError, Unavailable

pytestmark = pytest.mark.long


@pytest.fixture
def attacker(server: Server, client: Skerry) -> Iterator[Sandbox]:
    with watched(server, client, memory_mb=256) as box:
        arm(box)
        yield box


@on_both
@as_root_and_user
def test_every_way_to_the_host_is_refused(attacker: Sandbox, user: str, runtime: str) -> None:
    names = [name for name in ALL_ATTACKS if user != "root" or name != "signal_init"]
    script = "; ".join(f"{WORKSPACE_PROGRAM} {name}" for name in names)
    lines = [line.split() for line in attacker.commands.run(script, user=user).stdout.splitlines()]
    assert {line[0] for line in lines} == set(names)
    through = {line[0] for line in lines if line[1] != "refused"}
    assert through <= (ROOTS_OWN if user == "root" else set()) | (ONLY_INSIDE_GVISOR if runtime == "runsc" else set())
    answers(attacker)


@on_both
def test_a_setuid_program_gives_nothing(attacker: Sandbox) -> None:
    make = f"cp {WORKSPACE_PROGRAM} {{0}}/whoami; chown 0:0 {{0}}/whoami; chmod 4755 {{0}}/whoami"
    for place in ("/usr/local/bin", "/workspace", "/tmp"):
        attacker.commands.run(make.format(place)).check()
        assert attacker.commands.run([f"{place}/whoami"], user="1000").stdout == "1000 1000\n"


READS = [
    "/proc/1/root{home}/key",
    "/proc/self/root{home}/key",
    "/proc/self/cwd/../../../../..{home}/key",
    "{home}/key",
    "{home}/api/skerry.db",
    "{home}/run/node.sock",
    "/dev/vda",
    "/dev/mem",
    "/dev/kmsg",
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/keys",
    "/proc/sched_debug",
    "/sys/firmware/dmi/tables/DMI",
    "/sys/kernel/debug/x",
    "/var/run/docker.sock",
]


@on_both
@as_root_and_user
@pytest.mark.parametrize("way", ["command", "files"])
def test_nothing_of_the_host_can_be_read(server: Server, attacker: Sandbox, user: str, way: str) -> None:
    for path in READS:
        place = path.format(home=server.config.home)
        if way == "command":
            assert attacker.commands.run(["head", "-c", "32", place], user=user).stdout_bytes == b"", place
            continue
        try:
            assert attacker.files.read(place)[:32] == b"", place
        except SkerryError as refused:
            assert refused.code in ("not_found", "permission", "not_a_file", "not_a_directory"), (place, refused)
    answers(attacker)


@on_both
def test_kernel_settings_cannot_be_written(attacker: Sandbox) -> None:
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/panic_on_oom"):
        for refused in (attacker.commands.run(f"echo c > {path}").exit_code != 0, _unwritable(attacker, path)):
            assert refused, path
    answers(attacker)


def _unwritable(box: Sandbox, path: str) -> bool:
    try:
        box.files.write(path, b"c")
    except SkerryError:
        return True
    return False


@on_both
def test_links_to_the_host_lead_nowhere_through_the_files_of_the_api(server: Server, attacker: Sandbox) -> None:
    key = server.config.home / "key"
    attacker.commands.run(
        f"ln -s {key} key; ln -s /proc/1/root root; ln -s /proc/self/fd fds; ln -s ../../../../..{key} up; mkdir d;"
        f"ln -s {server.config.home} d/home"
    ).check()
    for path in ("key", "up", f"root{key}", "d/home/key", "fds/0", "fds/3"):
        with pytest.raises(SkerryError):
            attacker.files.read(path)
    with pytest.raises(SkerryError):
        attacker.files.write("d/home/written", b"through a link to what is not there inside")
    assert not (server.config.home / "written").exists()
    attacker.files.remove("d", recursive=True)
    assert key.exists()


EACH_OTHER = (
    "for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p -gt 1 ] && [ $p != $$ ] && kill {0} $p; done 2>/dev/null; true"
)
# What root may do to sbxd, which is its own. Each may end the sandbox; none may do more than that.
AT_SBXD = {
    "kill pid 1": "kill -9 1; kill -TERM 1; kill -SEGV 1; true",
    "stop pid 1": "kill -STOP 1; true",
    "kill everybody": "kill -9 -1; true",
    "kill every other": EACH_OTHER.format("-9"),
    "stop the keepers": EACH_OTHER.format("-STOP"),
    "close its socket": "rm -f /run/skerry/server.sock; mkdir /run/skerry/server.sock; true",
    "overwrite it": "cp /bin/true /.skerry/sbxd; rm -rf /.skerry; mv /.skerry /gone; true",
    "write its memory": "python3 -c \"open('/proc/1/mem','r+b').seek(4096)\"; echo 1000 > /proc/1/oom_score_adj; true",
    "limit it": 'python3 -c "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))"; true',
}


@on_both
@as_root_and_user
@pytest.mark.parametrize("attack", AT_SBXD.values(), ids=AT_SBXD.keys())
def test_sbxd_under_attack_answers_or_its_sandbox_says_that_it_died(attacker: Sandbox, user: str, attack: str) -> None:
    try:
        attacker.commands.run(attack, user=user, timeout_s=10)
    except SkerryError:
        assert user == "root"  # a user of the sandbox cannot end it
    if user == "root":
        answers_or_says_why(attacker, ["runtime_died"])
    else:
        answers(attacker)


IMPOSTOR = """
import socket, sys, time
held = []
for _ in range(200):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(0.5)
    try:
        s.connect("\\0skerry-sbxd")
        s.send(bytes.fromhex(sys.argv[1]))
    except OSError:
        pass
    held.append(s)
print("tried", flush=True)
time.sleep(8)
"""
FRAMES = {
    "silence": "00",
    "a wrong secret": (b"\x40\0\0\0\x01" + bytes(7) + b'{"protocol":1,"secret":"' + b"0" * 32 + b'"}'.ljust(8)).hex(),
    "an exec at once": (b'\x1b\0\0\0\x02\0\0\0\x01\0\0\0{"op":"exec","shell":"id"}').hex(),
    "rubbish": "ff" * 64,
}


@on_both
@as_root_and_user
@pytest.mark.parametrize("said", FRAMES.values(), ids=FRAMES.keys())
def test_an_impostor_at_sbxds_socket_gets_nothing_and_holds_up_nobody(
    server: Server, attacker: Sandbox, user: str, said: str
) -> None:
    knocking = attacker.commands.start(["python3", "-c", IMPOSTOR, said], user=user)
    eventually("it knocks", lambda: knocking.poll().stdout == "tried\n" or not knocking.poll().running, within_s=60)
    assert knocking.poll().stdout == "tried\n"
    answers(attacker)
    knocking.kill()


@on_both
@as_root_and_user
def test_a_node_that_returns_finds_its_way_past_impostors_or_says_that_it_did_not(
    server: Server, sandbox: Sandbox, client: Skerry, user: str
) -> None:
    """sbxd waits for the node at a socket that others inside can fill. It costs nobody but them."""
    with client.create("python") as neighbour:
        knock = f"while True:\n exec({IMPOSTOR!r}.replace('sleep(8)', 'sleep(1)'))"
        knocking = sandbox.commands.start(["python3", "-c", knock, "00"], user=user)
        eventually("it knocks", lambda: "tried" in knocking.poll().stdout, within_s=60)
        server.restarted("node", server.kill("node"))
        answers(neighbour)
        answers_or_says_why(sandbox, ["runtime_died"])


FLOOD = """
import socket, threading
def flood():
    held = []
    for _ in range(400):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(0.2)
        try:
            s.connect("/run/skerry/server.sock")
            s.send(b"x" * 300_000)
        except OSError:
            pass
        held.append(s)
threads = [threading.Thread(target=flood) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print("flooded", flush=True)
"""


@on_both
@as_root_and_user
def test_a_flood_at_the_servers_socket_costs_the_flooder_alone(server: Server, attacker: Sandbox, user: str) -> None:
    before = {part: server.memory_of(part) for part in ("api", "node")}
    flooding = attacker.commands.start(["python3", "-c", FLOOD], user=user, timeout_s=100)
    answers(attacker)
    assert flooding.wait().stdout == "flooded\n"
    answers(attacker)
    for part, then in before.items():
        assert server.memory_of(part) - then < 30 << 20, f"{part} grew with the flood"


def test_a_stopped_sbxd_is_found_out_and_woken(sandbox: Sandbox) -> None:
    """Only gVisor lets root inside stop the first process."""
    sandbox.commands.start(["kill", "-STOP", "1"])

    def answers_again() -> bool:
        try:
            return sandbox.commands.run(["echo", "well"]).stdout == "well\n"
        except Unavailable:
            return False

    eventually("it runs commands again", answers_again, within_s=60)
    assert sandbox.refresh().status in ("ready", "active")
