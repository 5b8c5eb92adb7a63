"""What an instance needs of the host as a whole: a /16 that collides with nothing, and forwarding for the answers.

Blocking; works in the network namespace of the calling thread. Knows no single sandbox.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

from skerry.model.errors import Refused
from skerry.node.network import addressing, links, nftables, sysctl
from skerry.node.network.addressing import AddressPlan
from skerry.node.network.policy import FORWARDING_TABLE, forwarding_guard

_NET = Path("/proc/thread-self/net")
_RTF_UP_REJECT = 0x0001, 0x0200


def settle(instance: str, wanted: IPv4Network | None, servers: Iterable[str]) -> AddressPlan:
    """The instance's addresses: those its sandboxes have, or else a /16 claimed now. Twice: the same.

    Raises:
        Refused: The one that is wanted is in use, or none is left; or sandboxes still live in another one.
    """
    claimed = links.claimed_network(instance)
    if claimed is not None:
        if links.host_ends(instance):
            return _keep(AddressPlan(instance, claimed), wanted)
        links.withdraw(AddressPlan(instance, claimed))
    taken = [*links.networks_in_use(instance), *_talking_to(), *_single(servers)]
    while (network := _choose(instance, wanted, taken)) is not None:
        plan = AddressPlan(instance, network)
        links.claim(plan)
        # Another instance may have looked at the same moment: whoever sees the other's claim goes on.
        if not any(network.overlaps(other) for other in links.other_claims(instance)):
            return plan
        links.withdraw(plan)
        taken.append(network)
    raise Refused(
        f"No IPv4 network is free for sandboxes: {wanted or 'every /16 of 10.128.0.0/9'} overlaps an address or a "
        "route of this host. Set sandbox_network to a private /16 that this host does not use."
    )


def _keep(plan: AddressPlan, wanted: IPv4Network | None) -> AddressPlan:
    if wanted not in (None, plan.network):
        raise Refused(
            f"sandbox_network is now {wanted}, but sandboxes of this instance still live in {plan.network}. "
            "Destroy them first, or set it back."
        )
    return plan


def _choose(instance: str, wanted: IPv4Network | None, taken: list[IPv4Network]) -> IPv4Network | None:
    if wanted is None:
        return addressing.first_free(instance, taken)
    return None if any(wanted.overlaps(other) for other in taken) else wanted


def _single(addresses: Iterable[str]) -> list[IPv4Network]:
    found = [ip_address(text) for text in addresses]
    return [IPv4Network((int(a), 32)) for a in found if isinstance(a, IPv4Address)]


def _talking_to() -> list[IPv4Network]:
    """The far ends of the host's TCP connections: a private network behind the default route shows only there."""
    found: list[IPv4Network] = []
    for line in (_NET / "tcp").read_text().splitlines()[1:]:
        remote = bytes.fromhex(line.split()[2].split(":")[0])[::-1]
        if any(remote):
            found.append(IPv4Network((int.from_bytes(remote, "big"), 32)))
    return found


def uplinks() -> tuple[str, ...]:
    """The interfaces with a default route: where sandboxes' packets leave and their answers come in.

    Read as text: with hundreds of sandboxes there are hundreds of routes, and each new sandbox asks.
    """
    up, reject = _RTF_UP_REJECT
    found: set[str] = set()
    for line in (_NET / "route").read_text().splitlines()[1:]:
        interface, _, _, flags, _, _, _, mask, *_ = line.split()
        # 0.0.0.0/1 and 128.0.0.0/1 are how VPN clients take the default route over. The word is in network order.
        wide = int(mask, 16) in (0, 0x80)
        if wide and int(flags, 16) & up and not int(flags, 16) & reject:
            found.add(interface)
    return tuple(sorted(found))


def forward_from(interfaces: tuple[str, ...]) -> tuple[str, ...]:
    """Make `interfaces` forward, for sandboxes only where they did not before; all that are under guard for that.

    Raises:
        Refused: /proc/sys is read-only, or nft would not.
    """
    off = tuple(name for name in interfaces if not sysctl.forwards(name))
    if off:
        nftables.load(forwarding_guard(off))  # before the switch: the host is at no moment a router for others
    for name in off:
        try:
            sysctl.set_forwarding(name, True)
        except OSError as error:
            raise Refused(
                f"IPv4 forwarding could not be switched on for {name}: {error}. "
                f"Run: sysctl -w net.ipv4.conf.{name}.forwarding=1"
            ) from error
    return tuple(sorted(nftables.elements(FORWARDING_TABLE, "uplinks")))


def stop_forwarding(instance: str) -> None:
    """Put forwarding back as it was, if no other instance is left on this host that needs it."""
    if links.other_claims(instance):
        return
    # Switched on for all by somebody meanwhile: then it is theirs, and stays.
    if not sysctl.forwards("all"):
        for name in nftables.elements(FORWARDING_TABLE, "uplinks"):
            if sysctl.forwards(name):
                sysctl.set_forwarding(name, False)
    if nftables.listing(FORWARDING_TABLE):
        nftables.delete(FORWARDING_TABLE)
