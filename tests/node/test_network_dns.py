"""How names are resolved inside: by the node's name server, an unprivileged process that hands questions on."""

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import netlab
import pytest
from netlab import Box, Lab, ask, attach, query, wait_until

from skerry.config import Config
from skerry.model.errors import Invalid, Refused
from skerry.node.network import Network, netns, resolver

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
SERVFAIL, TRUNCATED = 2, 0x0200


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab()
    lab.open()
    yield lab
    lab.close()


@pytest.fixture
async def network(lab: Lab, tmp_path: Path) -> AsyncIterator[Network]:
    lab.queries.clear()
    network = Network(Config(home=tmp_path, dns=netlab.NAME_SERVER))
    await network.open()
    yield network
    lab.silent = False
    for sandbox_id in await network.list():
        await network.detach(sandbox_id)
    await network.close()


@pytest.fixture
async def box(network: Network) -> Box:
    return await attach(network)


def header(answer: bytes | None) -> tuple[int, int, int]:
    assert answer is not None, "no answer came"
    query_id, flags, _, count = struct.unpack("!HHHH", answer[:8])
    return query_id, flags, count


async def test_a_name_is_resolved_and_the_answer_has_the_questions_id(lab: Lab, box: Box) -> None:
    answer = box.do(lambda: ask(box.gateway, query("pypi.org", 0xBEEF)))
    assert header(answer)[0] == 0xBEEF
    assert header(answer)[2] == 1
    assert answer is not None and answer.endswith(socket.inet_aton(netlab.WEB))
    assert lab.queries == ["pypi.org"]


async def test_a_long_answer_is_had_by_tcp(box: Box) -> None:
    assert header(box.do(lambda: ask(box.gateway, query("big.example"))))[1] & TRUNCATED
    assert header(box.do(lambda: ask(box.gateway, query("big.example"), tcp=True)))[2] == 100


async def test_several_questions_share_a_connection(box: Box) -> None:
    def talk() -> list[int]:
        ids: list[int] = []
        with socket.create_connection((box.gateway, 53), timeout=5) as sock, sock.makefile("rb") as stream:
            for query_id in (1, 2, 3):
                message = query("pypi.org", query_id)
                sock.sendall(struct.pack("!H", len(message)) + message)
                ids.append(header(stream.read(struct.unpack("!H", stream.read(2))[0]))[0])
        return ids

    assert box.do(talk) == [1, 2, 3]


async def test_a_silent_resolver_becomes_a_failure_not_a_hanging_program(lab: Lab, box: Box) -> None:
    lab.silent = True
    query_id, flags, count = header(box.do(lambda: ask(box.gateway, query("slow.example", 7))))
    assert (query_id, flags & 0xF, count) == (7, SERVFAIL, 0)


async def test_nonsense_is_not_handed_on_and_harms_nothing(lab: Lab, box: Box) -> None:
    answer_like = bytearray(query("forged.example"))
    answer_like[2] |= 0x80
    for nonsense in (b"", b"\0", b"\xff" * 11, bytes(answer_like)):
        assert box.do(lambda m=nonsense: ask(box.gateway, m, 0.2)) is None
        assert box.do(lambda m=nonsense: ask(box.gateway, m, 0.2, tcp=True)) is None
    assert header(box.do(lambda: ask(box.gateway, query("after.example"))))[2] == 1
    assert lab.queries == ["after.example"]


async def test_one_sandboxs_unanswered_questions_leave_room_for_the_others(
    lab: Lab, network: Network, box: Box
) -> None:
    other = await attach(network)
    lab.silent = True

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((box.gateway, 53))
            for number in range(400):
                sock.send(query("flood.example", number))

    box.do(flood)
    await wait_until(lambda: len(lab.queries) >= 128)
    lab.silent = False
    assert header(other.do(lambda: ask(other.gateway, query("calm.example"))))[2] == 1
    assert lab.queries.count("flood.example") == 128


async def test_connections_that_say_nothing_leave_room_for_the_others(network: Network, box: Box) -> None:
    other = await attach(network)
    idle = box.do(lambda: [socket.create_connection((box.gateway, 53), timeout=5) for _ in range(60)])
    try:
        assert header(other.do(lambda: ask(other.gateway, query("calm.example"), tcp=True)))[2] == 1
    finally:
        for sock in idle:
            sock.close()


async def test_the_name_server_is_nobody_and_returns_after_its_death(network: Network, box: Box) -> None:
    first = network.name_server_pid
    status = netlab.shell(f"cat /proc/{first}/status")
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: network.name_server_pid not in (0, first))
    answer = await asyncio.to_thread(lambda: box.do(lambda: ask(box.gateway, query("again.example"), 10)))
    assert header(answer)[2] == 1


async def test_nobody_but_sandboxes_may_ask(lab: Lab, box: Box) -> None:
    for place in ("lan", "internet", "host"):
        assert lab.at(place, lambda: ask(box.gateway, query("outsider.example"), 0.4)) is None
    assert lab.queries == []


async def test_no_other_name_server_of_the_hosts_networks_is_reached(lab: Lab, box: Box) -> None:
    listening = lab.at("lan", lambda: _udp_on_53())
    with listening:
        assert box.do(lambda: ask(netlab.LAN_NEIGHBOUR, query("lan.example"), 0.3)) is None
        with pytest.raises(BlockingIOError):
            listening.recv(100)


async def test_without_a_network_no_question_leaves(lab: Lab, network: Network, box: Box) -> None:
    path = await network.attach(box.id, "none")
    assert "nameserver" not in await network.resolv_conf("none")
    assert netns.inside(path, lambda: ask(box.gateway, query("quiet.example"), 0.3)) is None
    assert netns.inside(path, lambda: ask("127.0.0.1", query("quiet.example"), 0.3)) is None
    assert lab.queries == []


async def test_a_taken_port_is_told_and_nothing_is_left(lab: Lab, tmp_path: Path) -> None:
    before = netlab.shell("ip addr; nft list ruleset")
    with _udp_on_53(), pytest.raises(Refused, match="port 53"):
        await Network(Config(home=tmp_path, dns=netlab.NAME_SERVER)).open()
    assert netlab.shell("ip addr; nft list ruleset") == before


def test_a_setting_that_is_no_address_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"dns\.example") as caught:
        Network(Config(home=tmp_path, dns="8.8.8.8, dns.example"))
    assert caught.value.field == "dns"


def test_the_hosts_resolvers_are_read_from_its_file(tmp_path: Path) -> None:
    file, missing = tmp_path / "resolv.conf", tmp_path / "missing"
    file.write_text(
        "# comment\nsearch corp\nnameserver 10.0.0.53\nnameserver nonsense\nnameserver\nnameserver fd00::53\n"
    )
    assert resolver.host_servers(file, missing) == ("10.0.0.53", "fd00::53")
    assert resolver.host_servers(missing, missing) == ()


def test_the_resolvers_behind_systemds_stub_are_asked_directly(tmp_path: Path) -> None:
    stub, behind = tmp_path / "stub", tmp_path / "behind"
    stub.write_text("nameserver 127.0.0.53\noptions edns0 trust-ad\n")
    behind.write_text("nameserver 9.9.9.9\n")
    assert resolver.host_servers(stub, behind) == ("9.9.9.9",)
    assert resolver.host_servers(stub, tmp_path / "missing") == ("127.0.0.53",)


def _udp_on_53() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("0.0.0.0", 53))
    sock.setblocking(False)
    return sock
