"""The kernel's network switches, as files under /proc/sys/net, of the calling thread's network namespace."""

from collections.abc import Mapping
from pathlib import Path

_ROOT = Path("/proc/sys/net")

# The host's end of a sandbox's link. All traffic on it comes from hostile hands.
HOST_END: Mapping[str, str] = {
    "ipv4/conf/{}/forwarding": "1",
    "ipv4/conf/{}/rp_filter": "1",
    # Answer for the gateway's address only: otherwise ARP tells which other addresses the host has.
    "ipv4/conf/{}/arp_ignore": "1",
    "ipv4/conf/{}/arp_announce": "2",
    "ipv4/conf/{}/proxy_arp": "0",
    "ipv4/conf/{}/accept_redirects": "0",
    "ipv4/conf/{}/secure_redirects": "0",
    "ipv4/conf/{}/send_redirects": "0",
    "ipv4/conf/{}/accept_source_route": "0",
    "ipv4/conf/{}/route_localnet": "0",
    # No link-local address, and no router advertisement from a sandbox is ever believed.
    "ipv6/conf/{}/disable_ipv6": "1",
}


def write_all(values: Mapping[str, str], interface: str) -> None:
    """Set `values` for an interface. A kernel without IPv6 has no IPv6 to switch off. Raises OSError."""
    for template, value in values.items():
        path = _ROOT / template.format(interface)
        if template.startswith("ipv6/") and not path.exists():
            continue
        path.write_text(value)


def forwards(interface: str) -> bool:
    """Whether IPv4 packets that come in by `interface` (or `all`) are forwarded. Unknown interface: no."""
    try:
        return (_ROOT / f"ipv4/conf/{interface}/forwarding").read_text().strip() == "1"
    except FileNotFoundError:
        return False


def set_forwarding(interface: str, on: bool) -> None:
    """Switch forwarding for one interface. Raises OSError."""
    (_ROOT / f"ipv4/conf/{interface}/forwarding").write_text("1" if on else "0")


def no_ipv6_on_new_links() -> None:
    """In a sandbox's namespace: links get no IPv6; loopback, which exists already, keeps `::1`."""
    path = _ROOT / "ipv6/conf/default/disable_ipv6"
    if path.exists():
        path.write_text("1")
