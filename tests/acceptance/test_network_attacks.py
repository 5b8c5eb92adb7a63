"""From inside a sandbox with a network: what is not the outside world cannot be reached, whatever the user."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from acceptance.hostile import answers, as_root_and_user, watched
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import Sandbox, Skerry

pytestmark = pytest.mark.long

PROBE = """
import json, socket, sys, threading
found = {}
def look(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.settimeout(3)
        try:
            s.connect((host, port))
            found[f"{host} {port}"] = True
        except OSError:
            found[f"{host} {port}"] = False
threads = [threading.Thread(target=look, args=(h, int(p))) for h, p in (t.rsplit(" ", 1) for t in sys.argv[1:])]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps(found))
"""
ELSEWHERE = [
    "169.254.169.254 80",
    "169.254.170.2 80",
    "100.100.100.200 80",
    "fd00:ec2::254 80",
    "64:ff9b::a9fe:a9fe 80",
    "10.0.0.1 80",
    "172.16.0.1 80",
    "192.168.0.1 80",
    "127.0.0.1 22",
    "0.0.0.0 22",
    "::ffff:169.254.169.254 80",
    "224.0.0.1 80",
]


@pytest.fixture
def attacker(server: Server, client: Skerry) -> Iterator[Sandbox]:
    with watched(server, client, memory_mb=256) as box:
        yield box


def reached(box: Sandbox, user: str, *targets: str) -> set[str]:
    """Which of `address port` a program inside can connect to."""
    result = box.commands.run(["python3", "-c", PROBE, *targets], user=user, timeout_s=60).check()
    return {target for target, got_through in json.loads(result.stdout).items() if got_through}


def gateway_of(box: Sandbox) -> str:
    """The host's address on the sandbox's own link."""
    routes = box.commands.run("cat /proc/net/route").check().stdout.splitlines()[1:]
    via = next(line.split()[2] for line in routes if line.split()[1] == "00000000")
    return socket.inet_ntoa(bytes.fromhex(via)[::-1])


def address_of(box: Sandbox) -> str:
    ask = "import socket; s = socket.socket(2, 2); s.connect(('198.51.100.1', 9)); print(s.getsockname()[0])"
    return box.commands.run(["python3", "-c", ask]).check().stdout.strip()


@contextmanager
def listening(address: str) -> Iterator[tuple[int, list[str]]]:
    """A port of the host that takes everybody: its number, and who came."""
    came: list[str] = []
    with socket.create_server((address, 0)) as listener:
        listener.settimeout(0.1)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    peer, whence = listener.accept()
                except TimeoutError:
                    continue
                peer.close()
                came.append(whence[0])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], came
        finally:
            ended.set()
            thread.join()


@on_both
@as_root_and_user
def test_f20_the_hosts_ports_are_out_of_reach(server: Server, attacker: Sandbox, user: str) -> None:
    gateway = gateway_of(attacker)
    api = int(server.url.rsplit(":", 1)[1])
    with listening(gateway) as (port, came):
        targets = [f"{host} {number}" for host in (gateway, "127.0.0.1") for number in (port, api, 22)]
        assert reached(attacker, user, *targets) == set()
        assert came == []
    answers(attacker)


@on_both
@as_root_and_user
def test_f20_metadata_and_private_addresses_are_out_of_reach(attacker: Sandbox, user: str) -> None:
    assert reached(attacker, user, *ELSEWHERE) == set()


@on_both
@as_root_and_user
def test_f20_a_neighbours_ports_are_out_of_reach(client: Skerry, attacker: Sandbox, user: str) -> None:
    with client.create("python") as neighbour:
        neighbour.commands.run("python3 -m http.server 8000 >/dev/null 2>&1 &").check()
        place = address_of(neighbour)
        eventually("the neighbour serves", lambda: reached(neighbour, user, f"{place} 8000"), within_s=30)
        assert address_of(attacker) != place
        assert reached(attacker, user, f"{place} 8000") == set()


@on_both
def test_f20_the_names_of_the_host_and_the_api_lead_nowhere(server: Server, attacker: Sandbox) -> None:
    api = server.url.rsplit(":", 1)[1]
    for name in ("localhost", "host.docker.internal", "skerry", socket.gethostname(), "metadata.google.internal"):
        ask = f"import urllib.request as u; print(u.urlopen('http://{name}:{api}/healthz', timeout=3).status)"
        assert attacker.commands.run(["python3", "-c", ask], timeout_s=30).stdout == "", name


FORGED = {
    "raw": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "packet": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)",
    "netlink": (
        "import socket, struct\n"
        "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
        "s.bind((0, 0))\n"
        "s.send(struct.pack('=IHHIIBBBBiII', 32, 16, 5, 1, 0, 0, 0, 0, 0, 1, 0, 1))\n"  # set the first link down
        "a = s.recv(4096); raise SystemExit(struct.unpack('=i', a[16:20])[0] and 1)"
    ),
    "address": (
        "import fcntl, socket, struct\n"
        "s = socket.socket()\n"
        "fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8s', b'eth0', 2, 0, bytes([10, 9, 9, 9]), b''))"
    ),
}


@on_both
@as_root_and_user
@pytest.mark.parametrize("program", FORGED.values(), ids=FORGED.keys())
def test_f20_packets_links_and_addresses_cannot_be_forged(attacker: Sandbox, user: str, program: str) -> None:
    result = attacker.commands.run(["python3", "-c", program], user=user)
    assert result.exit_code == 1, result
    assert re.search("Error|^$", result.stderr)


@on_both
def test_f20_a_flood_of_connections_leaves_the_neighbours_network(client: Skerry, attacker: Sandbox) -> None:
    flood = (
        "import socket\n"
        "for n in range(20000):\n"
        " s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        " try: s.sendto(b'x', (f'198.51.100.{n % 250}', 1024 + n % 60000))\n"
        " except OSError: pass\n"
        " s.close()\n"
    )
    with client.create("python") as neighbour:
        flooding = attacker.commands.start(["python3", "-c", flood], timeout_s=60)
        ask = "import socket; socket.socket(2, 2).sendto(b'x', ('198.51.100.1', 9)); print('sent')"
        for _ in range(5):
            assert neighbour.commands.run(["python3", "-c", ask]).stdout == "sent\n"
        flooding.kill()
    answers(attacker)
