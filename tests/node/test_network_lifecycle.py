"""Networks of sandboxes as they come, are repaired, are taken over by the next process, and go."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import netlab
import pytest
from netlab import PORT, WEB, Lab, attach, shell

from skerry.config import Config
from skerry.model.errors import Invalid, Refused, Unavailable
from skerry.model.ids import SandboxId, new_sandbox_id
from skerry.node.network import Network, netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab()
    lab.open()
    yield lab
    lab.close()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(home=tmp_path / "home", dns=netlab.NAME_SERVER)


@pytest.fixture
async def network(lab: Lab, config: Config) -> AsyncIterator[Network]:
    network = Network(config)
    await network.open()
    yield network
    await end(network)


async def end(network: Network) -> None:
    await network.open()
    for sandbox_id in await network.list():
        await network.detach(sandbox_id)
    await network.close()


def host_state() -> str:
    """All that Skerry could leave in the host's namespace: interfaces, addresses, routes, rules, switches."""
    switches = "grep . /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv4/ip_forward"
    addresses = "ip -o addr | sed 's/ tentative//; s/valid_lft.*//'"
    return shell(f"{addresses}; ip route; ip -6 route; nft list ruleset; {switches}")


def interfaces(path: Path) -> list[str]:
    return netns.inside(path, lambda: [line.split()[1] for line in shell("ip -o link").splitlines()])


async def test_none_is_loopback_alone_and_it_is_up(network: Network) -> None:
    path = await network.attach(new_sandbox_id(), "none")
    assert interfaces(path) == ["lo:"]
    assert "LOOPBACK,UP" in netns.inside(path, lambda: shell("ip -o link show lo"))
    assert netns.inside(path, lambda: shell("ip route")) == ""


async def test_everything_is_gone_after_detach_and_close(lab: Lab, config: Config) -> None:
    before = host_state()
    network = Network(config)
    await network.open()
    ids = [new_sandbox_id() for _ in range(12)]
    await asyncio.gather(*(network.attach(i, ("none", "bridge")[n % 2]) for n, i in enumerate(ids)))
    assert await network.list() == set(ids)
    assert host_state() != before
    await asyncio.gather(*(network.detach(i) for i in ids))
    assert await network.list() == set()
    await network.close()
    await network.close()
    assert host_state() == before
    assert list((config.run_dir / "netns").iterdir()) == []
    assert str(config.run_dir) not in shell("cat /proc/mounts")
    assert [t for t in threading.enumerate() if t.name == "netns"] == []


async def test_attach_twice_and_at_once_is_one_network(network: Network) -> None:
    sandbox_id = new_sandbox_id()
    paths = await asyncio.gather(*(network.attach(sandbox_id, "bridge") for _ in range(5)))
    assert len(set(paths)) == 1
    assert interfaces(paths[0])[0] == "lo:" and len(interfaces(paths[0])) == 2
    assert shell("ip -o link | grep -c ': sk'").strip() == "1"


@pytest.mark.parametrize(
    "damage",
    [
        "ip addr flush dev eth0",
        "ip link set eth0 down",
        "ip route flush dev eth0",
        "ip addr flush dev eth0; ip link set eth0 down; ip link set lo down",
        "ip link del eth0",
    ],
)
async def test_attach_repairs_what_a_runtime_took_away_inside(network: Network, damage: str) -> None:
    box = await attach(network)
    box.do(lambda: shell(damage))
    assert box.reaches((WEB, PORT)) == set()
    assert await network.attach(box.id, "bridge") == box.path
    assert box.reaches((WEB, PORT)) == {(WEB, PORT)}
    assert box.address in box.do(lambda: shell("ip addr"))


@pytest.mark.parametrize(
    "damage", ["ip link del {0}", "ip link set {0} down", "ip addr flush dev {0}", "ip route flush dev {0}"]
)
async def test_attach_repairs_the_hosts_end(network: Network, damage: str) -> None:
    box = await attach(network)
    shell(damage.format(box.interface))
    assert box.reaches((WEB, PORT)) == set()
    await network.attach(box.id, "bridge")
    assert box.reaches((WEB, PORT)) == {(WEB, PORT)}


async def test_a_new_link_carries_packets_at_once(network: Network) -> None:
    """The first SYN is not lost, which would cost a second."""
    for _ in range(12):
        box = await attach(network)
        assert box.do(lambda: netlab.reached([(WEB, PORT)], 0.5)) == {(WEB, PORT)}


async def test_the_mode_may_change_between_starts(network: Network) -> None:
    box = await attach(network)
    await network.attach(box.id, "none")
    assert interfaces(box.path) == ["lo:"]
    await network.attach(box.id, "bridge")
    assert box.reaches((WEB, PORT)) == {(WEB, PORT)}


async def test_the_next_process_takes_over_what_lives(lab: Lab, config: Config) -> None:
    first = Network(config)
    await first.open()
    box, alone = await attach(first), new_sandbox_id()
    await first.attach(alone, "none")
    await first.close()
    assert box.reaches((netlab.METADATA, PORT), (WEB, PORT)) == {(WEB, PORT)}  # never without the rules
    second = Network(config)
    await second.open()
    try:
        assert await second.list() == {box.id, alone}
        assert box.reaches((netlab.METADATA, PORT), (WEB, PORT)) == {(WEB, PORT)}
        newcomer = await attach(second)
        assert newcomer.address != box.address
        await second.attach(box.id, "bridge")
        assert box.address in box.do(lambda: shell("ip addr"))
    finally:
        await end(second)


async def test_sandboxes_stay_walled_in_when_the_node_is_killed(lab: Lab, config: Config) -> None:
    sandbox_id = new_sandbox_id()
    program = f"""
import asyncio
from pathlib import Path
from skerry.config import Config
from skerry.node.network import Network

async def main():
    network = Network(Config(home=Path({str(config.home)!r}), dns={config.dns!r}))
    await network.open()
    path = await network.attach({sandbox_id!r}, "bridge")
    print(path, network.name_server_pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert node.stdout is not None
    path, name_server = (await asyncio.wait_for(node.stdout.readline(), 30)).split()
    node.kill()
    await node.wait()
    box = netlab.box_at(sandbox_id, Path(path.decode()))
    assert box.reaches((netlab.METADATA, PORT), (netlab.HOST, netlab.HOST_PORT), (WEB, PORT)) == {(WEB, PORT)}
    await netlab.wait_until(lambda: netlab.has_ended(int(name_server)))
    after = Network(config)
    await after.open()
    try:
        assert await after.list() == {sandbox_id}
        assert box.do(lambda: netlab.ask(box.gateway, netlab.query("pypi.org"))) is not None
    finally:
        await end(after)


async def test_leftovers_of_a_crash_are_cleared_at_the_next_start(lab: Lab, config: Config) -> None:
    first = Network(config)
    await first.open()
    boxes = [await attach(first) for _ in range(3)]
    await first.close()
    netns.remove(boxes[0].path)  # as if killed in the middle of a detach, after a reboot, in the middle of an attach
    netns.remove(boxes[1].path)
    boxes[1].path.touch()
    shell(f"ip link set {boxes[2].interface} alias ''")
    second = Network(config)
    await second.open()
    try:
        assert await second.list() == {boxes[2].id}
        assert ": sk" not in shell("ip -o link")
        await second.attach(boxes[2].id, "bridge")
        assert boxes[2].reaches((WEB, PORT)) == {(WEB, PORT)}
    finally:
        await end(second)


async def test_a_cancelled_attach_leaves_a_network_that_detach_removes(network: Network) -> None:
    before = host_state()
    sandbox_id = new_sandbox_id()
    task = asyncio.create_task(network.attach(sandbox_id, "bridge"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await network.detach(sandbox_id)
    assert host_state() == before


async def test_an_attach_that_fails_leaves_nothing(network: Network, config: Config) -> None:
    directory = config.run_dir / "netns"
    before = host_state()
    directory.rmdir()
    with pytest.raises(Refused):
        await network.attach(new_sandbox_id(), "bridge")
    directory.mkdir()
    assert host_state() == before
    assert await network.list() == set()


async def test_addresses_rest_before_they_are_used_again(network: Network) -> None:
    first = await attach(network)
    await network.detach(first.id)
    second = await attach(network)
    assert second.address != first.address


async def test_two_instances_live_side_by_side(lab: Lab, network: Network, tmp_path: Path) -> None:
    other = Network(Config(home=tmp_path / "other", dns=netlab.NAME_SERVER))
    await other.open()
    try:
        here, there = await attach(network), await attach(other)
        assert here.gateway != there.gateway
        assert here.reaches((WEB, PORT), (there.gateway, 53)) == {(WEB, PORT)}
        assert there.reaches((WEB, PORT)) == {(WEB, PORT)}
        with there.do(lambda: socket.create_server((there.address, 0))) as server:
            assert here.reaches((there.address, server.getsockname()[1])) == set()
    finally:
        await end(other)
    assert here.reaches((WEB, PORT)) == {(WEB, PORT)}  # forwarding stays on for the one that is left


async def test_two_instances_that_ask_for_the_same_network_are_told(lab: Lab, tmp_path: Path) -> None:
    first = Network(Config(home=tmp_path / "a", dns=netlab.NAME_SERVER, sandbox_network="10.240.0.0/16"))
    second = Network(Config(home=tmp_path / "b", dns=netlab.NAME_SERVER, sandbox_network="10.240.0.0/16"))
    await first.open()
    try:
        with pytest.raises(Refused, match=r"10\.240\.0\.0/16"):
            await second.open()
    finally:
        await end(first)


async def test_a_network_the_host_uses_is_not_taken(lab: Lab, config: Config) -> None:
    favourite = await _gateway_network(config)
    shell(f"ip route add {favourite}.7.0/24 via {netlab.ROUTER}")
    try:
        assert await _gateway_network(config) != favourite
        resolver = config.model_copy(update={"dns": f"{favourite}.99.53"})
        shell(f"ip route del {favourite}.7.0/24")
        assert await _gateway_network(resolver) != favourite
        assert await _gateway_network(config) == favourite
    finally:
        shell(f"ip route del {favourite}.7.0/24 2>/dev/null || true")


async def test_a_new_sandbox_network_waits_for_the_sandboxes_of_the_old_one(lab: Lab, config: Config) -> None:
    first = Network(config)
    await first.open()
    await attach(first)
    await first.close()
    moved = Network(config.model_copy(update={"sandbox_network": "10.241.0.0/16"}))
    with pytest.raises(Refused, match="Destroy them first"):
        await moved.open()
    await end(Network(config))
    await moved.open()
    assert "10.241.0.1" in await moved.resolv_conf("bridge")
    await moved.close()


async def test_a_host_that_moves_to_another_uplink_forwards_there_too(lab: Lab, network: Network) -> None:
    shell("ip link add up1 type veth peer name down1; ip addr add 9.9.10.2/24 dev up1; ip link set up1 up")
    shell("ip link set down1 up; ip route add default via 9.9.10.1 metric 50")
    try:
        await attach(network)
        assert shell("cat /proc/sys/net/ipv4/conf/up1/forwarding") == "1\n"
        assert '"up1"' in shell("nft list set inet skerry_forwarding uplinks")
    finally:
        shell("ip link del up1")


async def test_the_probes_pass_here_and_change_nothing(lab: Lab, config: Config) -> None:
    before = host_state()
    probes = await Network(config).probes()
    assert {p.name for p in probes} == {"nftables", "netns", "ip_forward", "firewall", "dns"}
    assert [p for p in probes if not p.ok] == []
    assert host_state() == before


async def test_a_name_that_is_no_id_never_becomes_a_path(network: Network) -> None:
    for name in ("../../etc", "", "sbx_", "sbx_/../../x"):
        with pytest.raises(Refused):
            await network.attach(SandboxId(name), "none")
        with pytest.raises(Refused):
            await network.detach(SandboxId(name))


async def test_an_unopened_network_says_so(config: Config) -> None:
    with pytest.raises(Unavailable):
        await Network(config).attach(new_sandbox_id(), "none")


@pytest.mark.parametrize("value", ["10.0.0.0/8", "10.1.2.0/16", "fd00::/16", "nonsense"])
def test_a_sandbox_network_that_is_no_ipv4_16_is_invalid(tmp_path: Path, value: str) -> None:
    with pytest.raises(Invalid) as caught:
        Network(Config(home=tmp_path, sandbox_network=value))
    assert caught.value.field == "sandbox_network"


def test_a_denied_network_that_is_none_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        Network(Config(home=tmp_path, deny_reach="10.0.0.0/8, corp.example"))
    assert caught.value.field == "deny_reach"


async def _gateway_network(config: Config) -> str:
    network = Network(config)
    await network.open()
    gateway = (await network.resolv_conf("bridge")).split()[1]
    await network.close()
    return gateway.rsplit(".", 2)[0]
