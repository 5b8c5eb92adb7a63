"""What a sandbox reaches on the network, and what it does not, tried with real sockets from inside its namespace."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import netlab
import pytest
from netlab import (
    FORBIDDEN,
    FORBIDDEN_V6,
    HOST,
    HOST_LAN,
    LAN_NEIGHBOUR,
    PORT,
    WEB,
    Box,
    Lab,
    attach,
    reached,
    shell,
    wait_until,
)

from skerry.config import Config
from skerry.node.network import Network, netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab()
    lab.open()
    yield lab
    lab.close()


@pytest.fixture
async def network(lab: Lab, tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(Config(home=tmp_path, dns=netlab.NAME_SERVER, deny_reach="8.8.9.0/24"))
    await network.open()
    yield network
    for sandbox_id in await network.list():
        await network.detach(sandbox_id)
    await network.close()


@pytest.fixture
async def box(network: Network) -> Box:
    return await attach(network)


def on(addresses: tuple[str, ...] | list[str], port: int = PORT) -> list[tuple[str, int]]:
    return [(address, port) for address in addresses]


def test_the_host_of_the_lab_reaches_everything(lab: Lab) -> None:
    everything = {*on([*FORBIDDEN, *FORBIDDEN_V6, WEB, LAN_NEIGHBOUR])}
    assert reached([*everything]) == everything


async def test_a_sandbox_reaches_the_public_internet_as_the_host(lab: Lab, box: Box) -> None:
    assert box.do(lambda: netlab.seen_as((WEB, PORT))) == HOST


async def test_no_special_purpose_address_is_reached(box: Box) -> None:
    assert box.reaches(*on(FORBIDDEN)) == set()


async def test_without_the_firewall_all_of_it_would_be_reached(network: Network, box: Box) -> None:
    table = shell("nft list tables | grep -o 'skerry_[0-9a-f]\\{8\\}'").strip()
    await network.close()  # the rules stay, since a sandbox is attached; only their keeper goes
    shell(f"nft delete table inet {table}")
    shell(f"sysctl -qw net.ipv6.conf.{box.interface}.disable_ipv6=0")
    try:
        host = [(HOST, netlab.HOST_PORT), (HOST_LAN, netlab.HOST_PORT), (box.gateway, netlab.HOST_PORT)]
        targets = {*on([*FORBIDDEN, WEB]), *host}
        assert box.reaches(*targets) == targets
        assert reach_host_by_ipv6(box) != set()
    finally:
        await network.open()


async def test_a_refusal_is_told_at_once(box: Box) -> None:
    def attempt() -> tuple[type[Exception] | None, float]:
        started = time.monotonic()
        try:
            socket.create_connection((netlab.METADATA, PORT), timeout=5).close()
        except OSError as error:
            return type(error), time.monotonic() - started
        return None, 0

    error, took_s = box.do(attempt)
    assert error is OSError
    assert took_s < 1


async def test_more_networks_can_be_denied(lab: Lab, box: Box) -> None:
    lab.at("internet", lambda: shell("ip addr add 8.8.9.1/32 dev lo; ip addr add 8.8.10.1/32 dev lo"))
    assert box.reaches(("8.8.9.1", PORT), ("8.8.10.1", PORT)) == {("8.8.10.1", PORT)}


async def test_the_host_is_reached_by_none_of_its_addresses(box: Box) -> None:
    ports = (netlab.HOST_PORT, netlab.HOST_LOOPBACK_PORT, 53)
    targets = [(a, p) for a in (HOST, HOST_LAN, "9.9.9.255", "192.168.77.255") for p in ports]
    targets += [(box.gateway, netlab.HOST_PORT), (box.gateway, netlab.HOST_LOOPBACK_PORT)]
    assert box.reaches(*targets) == set()


async def test_packets_to_the_hosts_loopback_are_not_taken(box: Box) -> None:
    shell(f"sysctl -qw net.ipv4.conf.{box.interface}.route_localnet=1")
    with netns.in_own_thread(lambda: udp_server("127.0.0.1")) as server:
        box.do(lambda: netlab.ask(box.gateway, netlab.query("warm.up")))  # so that the gateway's address is known
        packet = netlab.raw_udp(box.address, "127.0.0.1", b"knock", server.getsockname()[1])
        box.do(lambda: netlab.send_frame(with_checksum(packet)))
        assert nothing_arrives(server)


async def test_a_redirect_of_the_hosts_ports_is_no_way_around(lab: Lab, box: Box) -> None:
    """As Docker publishes ports: what was addressed to the host is sent on to an address that is itself allowed."""
    lab.at("lan", lambda: shell("ip addr add 8.8.11.1/32 dev lo"))
    shell(f"""
        ip route add 8.8.11.1 via {LAN_NEIGHBOUR}
        sysctl -qw net.ipv4.conf.lan0.forwarding=1
        nft 'add table ip published; add chain ip published p {{ type nat hook prerouting priority dstnat; }}'
        nft add rule ip published p fib daddr type local tcp dport 8080 dnat to 8.8.11.1:80
    """)
    try:
        assert lab.at("internet", lambda: netlab.seen_as((HOST, 8080))) == netlab.ROUTER  # published to the world
        assert box.reaches((HOST, 8080), (box.gateway, 8080)) == set()
        assert box.reaches(("8.8.11.1", PORT)) == {("8.8.11.1", PORT)}
    finally:
        shell("nft delete table ip published; sysctl -qw net.ipv4.conf.lan0.forwarding=0; ip route del 8.8.11.1")


async def test_neighbours_do_not_reach_each_other(network: Network, box: Box) -> None:
    other = await attach(network)
    with other.do(lambda: tcp_server("0.0.0.0")) as server:
        target = (other.address, server.getsockname()[1])
        assert other.reaches(target) == {target}
        assert box.reaches(target) == set()


async def test_nobody_reaches_into_a_sandbox_not_even_the_host(lab: Lab, box: Box) -> None:
    with box.do(lambda: tcp_server("0.0.0.0")) as server:
        target = (box.address, server.getsockname()[1])
        assert box.reaches(target) == {target}
        assert reached([target]) == set()
        assert lab.at("internet", lambda: reached([target])) == set()
        assert lab.at("lan", lambda: reached([target])) == set()


async def test_no_datagram_gets_into_a_sandbox_unasked(lab: Lab, box: Box) -> None:
    with box.do(lambda: udp_server("0.0.0.0")) as server:
        target = (box.address, server.getsockname()[1])
        for place in ("host", "internet", "lan"):
            lab.at(place, lambda: send_datagram(target))
        assert nothing_arrives(server)


async def test_the_hosts_lan_is_not_reached(box: Box) -> None:
    assert box.reaches((LAN_NEIGHBOUR, PORT)) == set()


@pytest.mark.parametrize("rp_filter", [0, 1])
async def test_spoofed_sources_never_leave_the_host(lab: Lab, network: Network, box: Box, rp_filter: int) -> None:
    other = await attach(network)
    shell(f"sysctl -qw net.ipv4.conf.{box.interface}.rp_filter={rp_filter}")  # the rules hold without its help
    sources = [other.address, box.gateway, HOST, "8.8.4.4", "127.0.0.1", "10.250.0.9", "255.255.255.255"]
    spoofed = [(WEB, netlab.raw_udp(source, WEB, b"spoofed")) for source in sources]
    honest = (WEB, netlab.raw_udp(box.address, WEB, b"marker"))
    with lab.at("internet", lambda: netlab.Sniffer("down0")) as seen:
        box.do(lambda: netlab.send_raw([*spoofed, honest]))
        assert [f for f in seen.before(b"marker") if b"spoofed" in f] == []


async def test_nothing_leaves_the_host_with_a_sandboxs_own_address(lab: Lab, box: Box) -> None:
    with lab.at("internet", lambda: netlab.Sniffer("down0")) as seen:
        # A segment without flags belongs to no connection and would not be translated.
        box.do(lambda: netlab.send_raw([(WEB, flagless_segment(box.address, WEB))]))
        box.do(lambda: netlab.send_raw([(WEB, netlab.raw_udp(box.address, WEB, b"marker"))]))
        assert [f for f in seen.before(b"marker") if socket.inet_aton(box.address) in f[26:30]] == []


async def test_source_routes_are_not_followed(lab: Lab, box: Box) -> None:
    for where in ("all", box.interface, "up0"):  # as on a host that allows them
        shell(f"sysctl -qw net.ipv4.conf.{where}.accept_source_route=1")
    option = bytes([131, 7, 4]) + socket.inet_aton("10.1.2.3") + b"\0"
    packet = netlab.raw_udp(box.address, WEB, b"loose")
    packet = struct.pack("!BBH", 0x47, 0, len(packet) + 8) + packet[4:20] + option + packet[20:]
    with lab.at("internet", lambda: netlab.Sniffer("down0")) as seen:
        box.do(lambda: netlab.send_raw([(WEB, packet), (WEB, netlab.raw_udp(box.address, WEB, b"marker"))]))
        assert [f for f in seen.before(b"marker") if b"loose" in f] == []


def reach_host_by_ipv6(box: Box) -> set[tuple[str, int]]:
    """Give the sandbox IPv6 as root inside could, and try the host's link-local address and its public one."""
    link_local = shell(f"ip -6 -o addr show dev {box.interface} scope link")
    if not link_local:
        shell(f"ip -6 addr add fe80::77/64 dev {box.interface} nodad")
    shell(f"ip -6 addr replace fd77::1/64 dev {box.interface} nodad")
    host = shell(f"ip -6 -o addr show dev {box.interface} scope link").split()[3].split("/")[0]

    def attempt() -> set[tuple[str, int]]:
        shell("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0")
        shell("ip -6 addr replace fe80::78/64 dev eth0 nodad; ip -6 addr replace fd77::2/64 dev eth0 nodad")
        shell("ip -6 route replace default via fd77::1")
        targets = [(f"{host}%eth0", netlab.HOST_PORT), ("fd77::1", netlab.HOST_PORT)]
        return reached([*targets, (netlab.HOST_V6, netlab.HOST_PORT), *on(FORBIDDEN_V6)])

    return box.do(attempt)


async def test_ipv6_is_off_on_the_link(box: Box) -> None:
    assert box.do(lambda: shell("ip -6 -o addr show dev eth0")) == ""
    assert shell(f"ip -6 -o addr show dev {box.interface}") == ""
    assert box.reaches(*on(FORBIDDEN_V6)) == set()


async def test_ipv6_is_denied_even_when_somebody_switches_it_on(box: Box) -> None:
    shell(f"sysctl -qw net.ipv6.conf.{box.interface}.disable_ipv6=0; sysctl -qw net.ipv6.conf.all.forwarding=1")
    try:
        assert reach_host_by_ipv6(box) == set()
    finally:
        shell("sysctl -qw net.ipv6.conf.all.forwarding=0")


async def test_arp_answers_for_the_gateway_alone(box: Box) -> None:
    def who_has(address: str) -> bool:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)) as sock:
            sock.bind(("eth0", 0x0806))
            sock.settimeout(0.5)
            own = sock.getsockname()[4]
            request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + own + socket.inet_aton(box.address)
            sock.send(b"\xff" * 6 + own + b"\x08\x06" + request + bytes(6) + socket.inet_aton(address))
            try:
                while True:
                    frame = sock.recv(2048)
                    if frame[20:22] == b"\0\2" and frame[28:32] == socket.inet_aton(address):
                        return True
            except TimeoutError:
                return False

    assert box.do(lambda: who_has(box.gateway))
    assert not box.do(lambda: who_has(HOST))
    assert not box.do(lambda: who_has(HOST_LAN))
    assert not box.do(lambda: who_has("127.0.0.1"))


async def test_the_rules_come_back_when_another_program_flushes_all(network: Network, box: Box) -> None:
    before = rules()
    shell("nft flush ruleset")
    await wait_until(lambda: rules() == before)
    assert box.reaches(*on([*FORBIDDEN, WEB])) == {(WEB, PORT)}


async def test_a_removed_rule_comes_back(network: Network, box: Box) -> None:
    before = rules()
    table = shell("nft list tables | grep -o 'skerry_[0-9a-f]\\{8\\}'").strip()
    shell(f"nft flush chain inet {table} outward; nft flush chain inet {table} sent")
    await wait_until(lambda: rules() == before)


async def test_the_host_does_not_become_a_router_for_others(lab: Lab, network: Network) -> None:
    knock = [(LAN_NEIGHBOUR, netlab.raw_udp("9.9.9.1", LAN_NEIGHBOUR, b"knock"))]
    with lab.at("lan", lambda: netlab.Sniffer("lan1")) as lan:
        lab.at("internet", lambda: netlab.send_raw(knock))
        assert not lan.sees(b"knock")
        shell("nft flush chain inet skerry_forwarding guard")
        lab.at("internet", lambda: netlab.send_raw(knock))
        assert lan.sees(b"knock", 5)


async def test_one_sandbox_does_not_fill_the_hosts_table_of_connections(network: Network, box: Box) -> None:
    other = await attach(network)
    flows = [(WEB, netlab.raw_udp(box.address, WEB, b"", port)) for port in range(1, 12_000)]
    box.do(lambda: netlab.send_raw(flows))
    count = int(shell("cat /proc/sys/net/netfilter/nf_conntrack_count"))
    assert 8000 < count < 8500
    assert box.reaches((WEB, PORT)) == set()
    assert other.reaches((WEB, PORT)) == {(WEB, PORT)}


async def test_a_firewall_that_drops_what_it_does_not_know_is_found(network: Network) -> None:
    shell(
        "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'"
    )
    try:
        probe = {p.name: p for p in await network.probes()}["firewall"]
        prefix = probe.remedy.split("interfaces ")[1].split("*")[0]
        shell(f"nft add rule ip filter FORWARD iifname '{prefix}*' accept")
        assert all(p.ok for p in await network.probes())
    finally:
        shell("nft delete table ip filter")
    assert not probe.ok
    assert "ip filter FORWARD" in probe.detail
    assert "DOCKER-USER" in probe.remedy
    assert all(p.ok for p in await network.probes())


def rules() -> list[str]:
    tables = sorted(shell("nft list tables").split("table ")[1:])
    return [shell(f"nft -s -t list table {table}") for table in tables]


def udp_server(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.settimeout(0.7)
    return sock


def send_datagram(target: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(PermissionError):
        sock.sendto(b"knock", target)


def tcp_server(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((address, 0))
    sock.listen(8)
    return sock


def nothing_arrives(server: socket.socket) -> bool:
    try:
        server.recv(100)
    except TimeoutError:
        return True
    return False


def with_checksum(packet: bytes) -> bytes:
    total = sum(struct.unpack("!10H", packet[:20]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return packet[:10] + struct.pack("!H", ~total & 0xFFFF) + packet[12:]


def flagless_segment(source: str, target: str) -> bytes:
    tcp = struct.pack("!HHIIBBHHH", 4000, 80, 1, 1, 0x50, 0, 1000, 0, 0)
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    total = sum(struct.unpack("!16H", addresses + struct.pack("!HH", 6, len(tcp)) + tcp))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    tcp = tcp[:16] + struct.pack("!H", ~total & 0xFFFF) + tcp[18:]
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 7, 0, 64, 6, 0) + addresses + tcp
