"""Whether this host's network can carry sandboxes, tried out in a namespace that vanishes. Changes nothing."""

import os
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

from skerry.model.capability import Probe
from skerry.model.errors import SkerryError
from skerry.node.network import host, links, netns, nftables, resolver, sysctl
from skerry.node.network.addressing import AddressPlan, interface_prefix
from skerry.node.network.policy import Policy, forwarding_guard, ruleset

_SCRATCH = IPv4Network("10.255.0.0/16")


def run(instance: str, servers: tuple[str, ...]) -> list[Probe]:
    """All probes. Never raises: what went wrong is in the probe."""
    return [
        _tried("nftables", _nftables, "Install nftables, and use a kernel with nf_tables, NAT and conntrack (≥ 5.10)."),
        _tried(
            "netns", _netns, "Run as root on the host itself, or in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN."
        ),
        _tried("ip_forward", _forwarding, "Make /proc/sys/net writable, or run: sysctl -w net.ipv4.ip_forward=1"),
        _tried(
            "firewall",
            lambda: _other_firewalls(instance),
            _firewall_remedy(interface_prefix(instance)),
            required=False,
            without="Mend nftables first (apt-get install nftables): without it nobody can tell.",
        ),
        _tried(
            "dns",
            lambda: _dns(servers),
            "Set dns to the addresses of name servers, or mend /etc/resolv.conf.",
            required=False,
        ),
    ]


def _firewall_remedy(prefix: str) -> str:
    return (
        f"Let the other firewall pass the interfaces {prefix}*. With Docker: iptables -I DOCKER-USER -i {prefix}+ -j "
        f"ACCEPT; iptables -I DOCKER-USER -o {prefix}+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT. Where "
        f"INPUT drops: iptables -I INPUT -i {prefix}+ -p udp --dport 53 -j ACCEPT, and the same for tcp. "
        "With firewalld: set sandbox_network, and firewall-cmd --permanent --zone=trusted --add-source=<that network>. "
        "What sandboxes may reach is decided by Skerry's own rules in any case."
    )


class _Fails(Exception):
    """A probe's finding that is no error of the system."""


def _tried(
    name: str, attempt: Callable[[], str], remedy: str, *, required: bool = True, without: str | None = None
) -> Probe:
    """`without` is the remedy where it could not even be looked."""
    try:
        return Probe(name, True, attempt(), required=required)
    except _Fails as error:
        return Probe(name, False, str(error), remedy, required=required)
    except (OSError, SkerryError) as error:
        return Probe(name, False, str(error), without or remedy, required=required)


def _nftables() -> str:
    plan = AddressPlan("00000000", _SCRATCH)

    def attempt() -> None:
        nftables.load(ruleset(Policy(plan)))
        nftables.load(forwarding_guard(("lo",)))

    netns.in_scratch(attempt)
    return "the rules for sandboxes load"


def _netns() -> str:
    plan = AddressPlan("00000000", _SCRATCH)

    def attempt() -> None:
        # Both ends in the scratch namespace: enough to see that links, their switches and addresses work.
        links.connect(plan, 0, "probe", Path("/proc/thread-self/ns/net"))
        if not links.repair_inner_end(plan, 0):
            raise _Fails("a veth pair was made, but its other end is missing")

    netns.in_scratch(attempt)
    return "namespaces and veth links work"


def _forwarding() -> str:
    names = host.uplinks()
    if not names:
        return "no default route: sandboxes with a network reach nothing"
    off = [name for name in names if not sysctl.forwards(name)]
    for name in off:
        if not os.access(f"/proc/sys/net/ipv4/conf/{name}/forwarding", os.W_OK):
            raise _Fails(f"forwarding is off for {name} and cannot be switched on")
    return f"on, or can be switched on, for {', '.join(names)}"


def _other_firewalls(instance: str) -> str:
    chains = [c for c in nftables.base_chains(("forward", "input")) if not str(c["table"]).startswith("skerry_")]
    # firewalld accepts by policy and rejects in its last rule.
    dropping = [c for c in chains if c.get("policy") == "drop" or c["table"] == "firewalld"]
    unaware = {(c["family"], c["table"]): c for c in dropping}
    for family, table in list(unaware):
        if f'"{interface_prefix(instance)}' in nftables.listing(table, family):
            del unaware[family, table]  # its owner has let sandboxes pass, as the remedy says
    if unaware:
        names = "; ".join(f"{c['family']} {c['table']} {c['name']}" for c in unaware.values())
        raise _Fails(f"another firewall drops what it does not know: {names}")
    if "filter" in _legacy_tables():
        raise _Fails("rules of the old iptables are loaded beside nftables, and cannot be seen from here")
    return "no other firewall is in the way"


def _legacy_tables() -> list[str]:
    try:
        return Path("/proc/thread-self/net/ip_tables_names").read_text().split()
    except OSError:
        return []


def _dns(servers: tuple[str, ...]) -> str:
    found = servers or resolver.host_servers()
    if not found:
        raise _Fails("no name server is known")
    return f"names are asked of {', '.join(found)}"
