"""A small internet made of network namespaces, to attack from inside a sandbox's namespace with real sockets.

    sandbox ── host ──(up0)── internet: the world, with every address an attacker may want; servers on all of them
                 └───(lan0)── a machine on the host's own LAN

The test's main thread *is* the host: while a lab is open it lives in the host's namespace, so that the code under test
runs there unchanged, and the machine's own network is never touched.
"""

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL, get_errno
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from skerry.model.ids import SandboxId, new_sandbox_id
from skerry.node.network import Network, netns

T = TypeVar("T")
Target = tuple[str, int]

HOST, HOST_LAN, HOST_V6 = "9.9.9.2", "192.168.77.1", "2600:aaaa::2"
ROUTER, ROUTER_V6 = "9.9.9.1", "2600:aaaa::1"
WEB, NAME_SERVER, LAN_NEIGHBOUR = "8.8.8.8", "8.8.4.4", "192.168.77.10"
METADATA = "169.254.169.254"
# One address of each kind that no sandbox may reach. In the lab all of them answer, and the host has a route to them.
FORBIDDEN = (
    METADATA,
    "10.1.2.3",
    "172.16.9.9",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.10",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.7",
    "240.0.0.1",
)
FORBIDDEN_V6 = ("fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2001:db8::1", "2600::1")
PORT, HOST_PORT, HOST_LOOPBACK_PORT = 80, 8000, 8001
CONNECT_S = 0.7

_CLONE_NEWNET = 0x40000000
_libc = CDLL(None, use_errno=True)


class Lab:
    """The running lab. `queries` are the names its name server was asked for."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.silent = False  # the name server takes queries and says nothing
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._home = _current()
        self._places = {name: netns.in_scratch(_current) for name in ("internet", "lan")}

    def open(self) -> None:
        _check(_libc.unshare(_CLONE_NEWNET))
        netns.set_up("lo")
        shell("ip link add up0 type veth peer name down0; ip link add lan0 type veth peer name lan1")
        for interface, place in (("down0", "internet"), ("lan1", "lan")):
            shell(f"ip link set {interface} netns /proc/{os.getpid()}/fd/{self._places[place]}")
        self._address()
        self._serve("internet", socket.AF_INET, "0.0.0.0", PORT)
        self._serve("internet", socket.AF_INET6, "::", PORT)
        self._serve("lan", socket.AF_INET, "0.0.0.0", PORT)
        self._serve("host", socket.AF_INET, "0.0.0.0", HOST_PORT)
        self._serve("host", socket.AF_INET, "127.0.0.1", HOST_LOOPBACK_PORT)
        self._serve("host", socket.AF_INET6, "::", HOST_PORT)
        udp, tcp = self.at(
            "internet", lambda: (_bound(socket.SOCK_DGRAM, NAME_SERVER, 53), _listening(NAME_SERVER, 53))
        )
        self._start(self._answer_names, udp, tcp)

    def close(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(5)
        _check(_libc.setns(self._home, _CLONE_NEWNET))
        for fd in (self._home, *self._places.values()):
            os.close(fd)

    def at(self, place: str, action: Callable[[], T]) -> T:
        """Run `action` on the `host`, on the `internet` or in the `lan`."""
        if place == "host":
            return netns.in_own_thread(action)
        return netns.inside(Path(f"/proc/self/fd/{self._places[place]}"), action)

    def _address(self) -> None:
        shell(f"""
            ip addr add {HOST}/24 dev up0; ip -6 addr add {HOST_V6}/64 dev up0 nodad; ip link set up0 up
            ip addr add {HOST_LAN}/24 dev lan0; ip link set lan0 up
            ip route add default via {ROUTER}; ip route add {METADATA} dev up0
            ip -6 route add default via {ROUTER_V6}
        """)
        owned = "\n".join(f"ip addr add {address}/32 dev lo" for address in (*FORBIDDEN, WEB, NAME_SERVER))
        owned += "\n" + "\n".join(f"ip -6 addr add {address}/128 dev lo nodad" for address in FORBIDDEN_V6)
        # What leaks out with a sandbox's own address finds its way back: a leak must show as a success.
        internet = f"""
            ip addr add {ROUTER}/24 dev down0; ip -6 addr add {ROUTER_V6}/64 dev down0 nodad; ip link set down0 up
            ip route add 10.128.0.0/9 via {HOST}; ip route add 192.168.77.0/24 via {HOST}
            ip -6 route add fd77::/64 via {HOST_V6}
            {owned}
        """
        self.at("internet", lambda: shell(internet))
        lan = f"ip addr add {LAN_NEIGHBOUR}/24 dev lan1; ip link set lan1 up; ip route add default via {HOST_LAN}"
        self.at("lan", lambda: shell(lan))

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self, place: str, family: socket.AddressFamily, address: str, port: int) -> None:
        self._start(self._greet, self.at(place, lambda: _listening(address, port, family)))

    def _greet(self, listening: socket.socket) -> None:
        with listening:
            for _ in self._ready([listening]):
                client, peer = listening.accept()
                with client, contextlib.suppress(OSError):
                    client.sendall(peer[0].encode())

    def _ready(self, sockets: Sequence[socket.socket]) -> Iterator[socket.socket]:
        while not self._ending.is_set():
            yield from select.select(sockets, [], [], 0.1)[0]

    def _answer_names(self, udp: socket.socket, tcp: socket.socket) -> None:
        with udp, tcp:
            for sock in self._ready([udp, tcp]):
                if sock is udp:
                    query, peer = udp.recvfrom(65535)
                    if answer := self._answer(query, short=True):
                        udp.sendto(answer, peer)
                    continue
                client, _ = tcp.accept()
                client.settimeout(2)
                with client, contextlib.suppress(OSError, struct.error):
                    answer = self._answer(client.recv(65535)[2:], short=False)
                    client.sendall(struct.pack("!H", len(answer)) + answer)

    def _answer(self, query: bytes, *, short: bool) -> bytes:
        if len(query) < 17:
            return b""
        name, end = _name(query)
        self.queries.append(name)
        if self.silent:
            return b""
        count, flags = (100, 0x8180) if name.startswith("big.") else (1, 0x8180)
        if count > 1 and short:
            count, flags = 0, 0x8380  # truncated: ask again by TCP
        record = struct.pack("!HHHIH4s", 0xC00C, 1, 1, 60, 4, socket.inet_aton(WEB))
        return query[:2] + struct.pack("!HHHHH", flags, 1, count, 0, 0) + query[12 : end + 4] + record * count


@dataclass(frozen=True)
class Box:
    """A sandbox's namespace, and how it looks from outside."""

    id: SandboxId
    path: Path
    address: str
    gateway: str
    interface: str

    def do(self, action: Callable[[], T]) -> T:
        return netns.inside(self.path, action)

    def reaches(self, *targets: tuple[str, int]) -> set[tuple[str, int]]:
        return self.do(lambda: reached(targets))


async def attach(network: Network) -> Box:
    """A new sandbox's namespace with a bridge."""
    sandbox_id = new_sandbox_id()
    return box_at(sandbox_id, await network.attach(sandbox_id, "bridge"))


def box_at(sandbox_id: SandboxId, path: Path) -> Box:
    """The namespace of a sandbox that exists, as it is configured inside."""
    address = netns.inside(path, lambda: shell("ip -4 -o addr show dev eth0")).split()[3].split("/")[0]
    gateway = netns.inside(path, lambda: shell("ip route show default")).split()[2]
    interface = shell(f"ip -o route get {address}").split("dev ")[1].split()[0]
    return Box(sandbox_id, path, address, gateway, interface)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for whoever adopted it to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def wait_until(condition: Callable[[], bool], deadline_s: float = 10) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        await asyncio.sleep(0.02)


def query(name: str, query_id: int = 0x1234) -> bytes:
    """A question for an address."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", query_id, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def ask(server: str, message: bytes, timeout_s: float = 5.0, *, tcp: bool = False) -> bytes | None:
    """Ask a name server from the calling thread's namespace. None: nothing came back."""
    kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect((server, 53))
            if not tcp:
                sock.send(message)
                return sock.recv(65535)
            sock.sendall(struct.pack("!H", len(message)) + message)
            with sock.makefile("rb") as stream:
                return stream.read(struct.unpack("!H", stream.read(2))[0])
        except (OSError, struct.error):
            return None


def seen_as(target: Target) -> str:
    """The address that a server sees a connection come from."""
    with socket.create_connection(target, timeout=5) as sock:
        return sock.recv(100).decode()


def reached(targets: Sequence[Target], wait_s: float = CONNECT_S) -> set[Target]:
    """Those of `targets` that a TCP connection could be made to, from the calling thread's namespace, all at once."""
    pending: dict[socket.socket, Target] = {}
    found: set[Target] = set()
    with contextlib.ExitStack() as stack:
        for target in targets:
            family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            with contextlib.suppress(OSError):
                if sock.connect_ex(socket.getaddrinfo(*target)[0][4]) == errno.EINPROGRESS:
                    pending[sock] = target
        end = time.monotonic() + wait_s
        while pending and (left := end - time.monotonic()) > 0:
            for sock in select.select([], list(pending), [], left)[1]:
                target = pending.pop(sock)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.add(target)
    return found


class Sniffer(contextlib.AbstractContextManager["Sniffer"]):
    """Frames on an interface of the namespace it is made in; ask for those seen before a marker."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((interface, 3))
        self._socket.settimeout(5)

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def before(self, marker: bytes) -> list[bytes]:
        frames: list[bytes] = []
        while marker not in (frame := self._socket.recv(65535)):
            frames.append(frame)
        return frames

    def sees(self, payload: bytes, wait_s: float = 0.5) -> bool:
        """Whether a frame with `payload` comes in within `wait_s`."""
        end = time.monotonic() + wait_s
        while (left := end - time.monotonic()) > 0 and select.select([self._socket], [], [], left)[0]:
            if payload in self._socket.recv(65535):
                return True
        return False


def raw_udp(source: str, target: str, payload: bytes, port: int = 9) -> bytes:
    """An IPv4 packet with a source of one's own choice. The kernel fills the IP checksum in; UDP's is left out."""
    udp = struct.pack("!HHHH", 9, port, 8 + len(payload), 0) + payload
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 7, 0, 64, 17, 0) + addresses + udp


def send_raw(packets: Sequence[tuple[str, bytes]]) -> None:
    """Send ready-made IPv4 packets by eth0, each to its target, as root inside a sandbox can."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        for target, packet in packets:
            sock.sendto(packet, (target, 0))


def send_frame(packet: bytes, kind: int = 0x0800) -> None:
    """Send a packet to the host's end of the link of the calling thread's namespace, past every route."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(kind)) as sock:
        sock.sendto(packet, ("eth0", kind, 0, 0, gateway_mac()))


def gateway_mac() -> bytes:
    """The hardware address of the host's end, from the neighbour table of the calling thread's namespace."""
    table = Path("/proc/thread-self/net/arp").read_text().splitlines()[1:]
    return bytes.fromhex(table[0].split()[3].replace(":", ""))


def shell(commands: str) -> str:
    """Run commands in the calling thread's namespace; the first that fails ends them."""
    done = subprocess.run(["sh", "-ec", commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{commands}\n{done.stderr}"
    return done.stdout


def _name(message: bytes) -> tuple[str, int]:
    labels, position = [], 12
    while position < len(message) and (length := message[position]):
        labels.append(message[position + 1 : position + 1 + length].decode(errors="replace"))
        position += length + 1
    return ".".join(labels), position + 1


def _bound(kind: socket.SocketKind, address: str, port: int, family: int = socket.AF_INET) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind((address, port))
    return sock


def _listening(address: str, port: int, family: int = socket.AF_INET) -> socket.socket:
    sock = _bound(socket.SOCK_STREAM, address, port, family)
    sock.listen(64)
    return sock


def _current() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _check(result: int) -> None:
    assert result == 0, os.strerror(get_errno())
