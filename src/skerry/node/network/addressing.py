"""Who gets which address and which interface name. Pure: looks at nothing, changes nothing.

An instance owns one IPv4 /16. Its first address is the gateway of every sandbox (each host end of a link carries it),
the first and the last 256 addresses are never given out, and the sandbox with index `i` has the
address `256 + i`. The interface's name holds the index, so that the kernel is the only record of who has what.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_network

from skerry.model.errors import Invalid

CAPACITY = 65_536 - 2 * 256
PREFIX_LENGTH = 16
_POOL = IPv4Network("10.128.0.0/9")
_FIRST = 256
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """The addresses and names of one instance."""

    instance: str
    network: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        """What sandboxes route to, and where the resolver listens. The same for all of them."""
        return self.network[1]

    @property
    def interface_prefix(self) -> str:
        return interface_prefix(self.instance)

    def address(self, index: int) -> IPv4Address:
        if not 0 <= index < CAPACITY:
            raise ValueError(f"index {index} is outside 0…{CAPACITY - 1}")
        return self.network[_FIRST + index]

    def interface(self, index: int) -> str:
        """The host end's name: at most 14 characters, the kernel allows 15."""
        return self.interface_prefix + _base36(index)


def interface_prefix(instance: str) -> str:
    """What every interface of an instance begins with; one wildcard rule in the firewall covers all its sandboxes."""
    return f"sk{instance}"


def index_of(interface: str, instance: str) -> int | None:
    """The index in an interface's name, or None when it is not one of this instance's."""
    match = re.fullmatch(re.escape(interface_prefix(instance)) + "([0-9a-z]{1,4})", interface)
    index = int(match[1], 36) if match else CAPACITY
    return index if index < CAPACITY else None


def candidates(instance: str) -> Iterator[IPv4Network]:
    """Every /16 an instance may take, its own favourite first. Two instances walk them in different orders."""
    count = 2 ** (PREFIX_LENGTH - _POOL.prefixlen)
    seed = int(instance, 16)
    start, step = seed % count, (seed // count) % count | 1  # an odd step visits all of a power of two
    base = int(_POOL.network_address)
    for turn in range(count):
        yield IPv4Network((base + ((start + turn * step) % count << 16), PREFIX_LENGTH))


def first_free(instance: str, taken: Iterable[IPv4Network]) -> IPv4Network | None:
    """The instance's favourite among the /16s that overlap nothing the host uses."""
    used = tuple(taken)
    return next((c for c in candidates(instance) if not any(c.overlaps(other) for other in used)), None)


def parse_sandbox_network(text: str) -> IPv4Network | None:
    """The setting `sandbox_network`; None when it is left to us.

    Raises:
        Invalid: It is not an IPv4 /16.
    """
    if not text.strip():
        return None
    try:
        network = IPv4Network(text.strip())
    except ValueError as error:
        raise Invalid(f"sandbox_network '{text}' is not an IPv4 network: {error}.", field="sandbox_network") from error
    if network.prefixlen != PREFIX_LENGTH:
        raise Invalid(f"sandbox_network '{text}' must be a /16, such as 10.200.0.0/16.", field="sandbox_network")
    return network


def parse_deny_reach(text: str) -> tuple[IPv4Network, ...]:
    """The IPv4 part of the setting `deny_reach`. IPv6 networks are valid and need no rule: all of IPv6 is denied.

    Raises:
        Invalid: One of them is not a network.
    """
    networks: list[IPv4Network] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            network = ip_network(item, strict=False)
        except ValueError as error:
            raise Invalid(
                f"deny_reach: '{item}' is not a network such as 203.0.113.0/24.", field="deny_reach"
            ) from error
        if isinstance(network, IPv4Network):
            networks.append(network)
    return tuple(networks)


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
        if not number:
            return digits
