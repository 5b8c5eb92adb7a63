"""Interfaces, addresses and routes of the host and of sandboxes, through the kernel's routing socket.

Blocking; each function works in the network namespace of the calling thread. Decides nothing.
"""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, cast

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from skerry.model.metrics import Traffic
from skerry.node.network import netns, sysctl
from skerry.node.network.addressing import AddressPlan, interface_prefix

INSIDE = "eth0"  # the link's name in the sandbox
_SCOPE_HOST, _SCOPE_LINK = 254, 253


@dataclass(frozen=True, slots=True)
class Link:
    """A host end. `owner` is what was recorded on it when it was made; empty: its making was cut short."""

    name: str
    owner: str


@contextmanager
def _kernel() -> Generator[Any]:
    """A routing socket. Refusals of the kernel come out as OSError, like those of every other call."""
    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as error:
        raise OSError(cast(int, error.code), f"netlink: {error}") from error


def _dump(ip: Any, kind: str, **match: Any) -> list[dict[str, Any]]:
    """Messages of a dump as plain dicts: header fields and attributes together."""
    messages = getattr(ip, f"get_{kind}")(**match)
    return [{**{k: v for k, v in m.items() if k != "attrs"}, **dict(m["attrs"])} for m in messages]


def host_ends(instance: str) -> list[Link]:
    """The host ends of all links of this instance."""
    prefix = interface_prefix(instance)
    with _kernel() as ip:
        found = _dump(ip, "links")
    return [Link(x["IFLA_IFNAME"], x.get("IFLA_IFALIAS") or "") for x in found if x["IFLA_IFNAME"].startswith(prefix)]


def traffic(instance: str) -> dict[str, Traffic]:
    """What each link of this instance has carried, by the host end's name and seen from the sandbox.

    One read for all of them, of the host's namespace: no thread of ours leaves the process's own there.
    """
    prefix = interface_prefix(instance)
    counted: dict[str, Traffic] = {}
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.lstrip().partition(":")
        if name.startswith(prefix):
            fields = numbers.split()
            counted[name] = Traffic(rx_bytes=int(fields[8]), tx_bytes=int(fields[0]))  # the host receives what it sends
    return counted


def connect(plan: AddressPlan, index: int, owner: str, namespace: Path) -> None:
    """Make the link of a sandbox, the inner end directly in its namespace, and configure the host end."""
    name = plan.interface(index)
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _kernel() as ip:
            ip.link("add", ifname=name, kind="veth", peer={"ifname": INSIDE, "net_ns_fd": fd})
            # The kernel keeps who it belongs to, as long as the link itself: that record cannot go stale.
            ip.link("set", index=socket.if_nametoindex(name), ifalias=owner)
            _configure_host_end(ip, plan, index)
    finally:
        os.close(fd)


def repair_host_end(plan: AddressPlan, index: int) -> None:
    """Switches, address and route of a host end, whatever became of them. The link must exist."""
    with _kernel() as ip:
        _configure_host_end(ip, plan, index)


def _configure_host_end(ip: Any, plan: AddressPlan, index: int) -> None:
    name = plan.interface(index)
    sysctl.write_all(sysctl.HOST_END, name)
    link, gateway = socket.if_nametoindex(name), str(plan.gateway)
    # Not a point-to-point address: under arp_ignore the kernel would not answer for it.
    ip.addr("replace", index=link, local=gateway, address=gateway, prefixlen=32, scope=_SCOPE_LINK)
    ip.link("set", index=link, state="up")
    # The one route to the sandbox, which makes its address the only source that is accepted from it.
    ip.route("replace", dst=f"{plan.address(index)}/32", oif=link, scope=_SCOPE_LINK, prefsrc=gateway)


def repair_inner_end(plan: AddressPlan, index: int) -> bool:
    """Address and routes of the inner end; the caller is in the sandbox's namespace. False: there is no such link."""
    try:
        link = socket.if_nametoindex(INSIDE)
    except OSError:
        return False
    address, gateway = str(plan.address(index)), str(plan.gateway)
    netns.set_up("lo")
    with _kernel() as ip:
        ip.link("set", index=link, state="up")
        ip.addr("replace", index=link, local=address, address=address, prefixlen=32)
        ip.route("replace", dst=f"{gateway}/32", oif=link, scope=_SCOPE_LINK, prefsrc=address)
        ip.route("replace", dst="0.0.0.0/0", gateway=gateway, oif=link)
    return True


def exists(name: str) -> bool:
    """Whether there is such an interface."""
    try:
        return socket.if_nametoindex(name) > 0
    except OSError:
        return False


def delete(name: str) -> None:
    """Delete a link, both ends. Absent: nothing happens."""
    try:
        link = socket.if_nametoindex(name)
    except OSError:
        return
    try:
        with _kernel() as ip:
            ip.link("del", index=link)
    except OSError:
        if name in (n for _, n in socket.if_nameindex()):
            raise


def claimed_network(instance: str) -> IPv4Network | None:
    """The /16 that this instance has claimed on this host, by its labelled address on `lo`."""
    return _claims().get(_label(instance))


def claim(plan: AddressPlan) -> None:
    """Claim the plan's /16: its gateway address goes on `lo`, where every instance looks before it takes one."""
    with _kernel() as ip:
        loopback, gateway = socket.if_nametoindex("lo"), str(plan.gateway)
        ip.addr(
            "replace",
            index=loopback,
            local=gateway,
            address=gateway,
            prefixlen=32,
            scope=_SCOPE_HOST,
            label=_label(plan.instance),
        )


def withdraw(plan: AddressPlan) -> None:
    """Give the claim back. Twice: nothing happens."""
    if claimed_network(plan.instance) == plan.network:
        with _kernel() as ip:
            ip.addr(
                "del",
                index=socket.if_nametoindex("lo"),
                local=str(plan.gateway),
                address=str(plan.gateway),
                prefixlen=32,
            )


def other_claims(instance: str) -> list[IPv4Network]:
    """The /16s of the other instances on this host."""
    return [network for label, network in _claims().items() if label != _label(instance)]


def networks_in_use(instance: str) -> list[IPv4Network]:
    """What the host can tell apart from the rest of the world: its addresses and routes, without this instance's."""
    ours = {socket.if_nametoindex(link.name) for link in host_ends(instance)}
    with _kernel() as ip:
        addresses = [a for a in _dump(ip, "addr", family=socket.AF_INET) if a.get("IFA_LABEL") != _label(instance)]
        routes = [r for r in _dump(ip, "routes", family=socket.AF_INET) if r.get("RTA_DST")]
    # The kernel's own table of local addresses repeats the addresses.
    routes = [r for r in routes if r.get("RTA_OIF") not in ours and r.get("RTA_TABLE") != 255]
    found = [(a["IFA_LOCAL"], a["prefixlen"]) for a in addresses if a["index"] not in ours and a.get("IFA_LOCAL")]
    found += [(r["RTA_DST"], r["dst_len"]) for r in routes]
    found += [(r["RTA_GATEWAY"], 32) for r in routes if r.get("RTA_GATEWAY")]
    return [IPv4Network(item, strict=False) for item in found if item[1] > 1]


def _label(instance: str) -> str:
    return f"lo:{interface_prefix(instance)}"


def _claims() -> dict[str, IPv4Network]:
    with _kernel() as ip:
        found = _dump(ip, "addr", family=socket.AF_INET, index=socket.if_nametoindex("lo"))
    labelled = {
        a["IFA_LABEL"]: IPv4Address(a["IFA_LOCAL"]) for a in found if a.get("IFA_LABEL", "").startswith("lo:sk")
    }
    return {label: IPv4Network((int(address), 16), strict=False) for label, address in labelled.items()}
