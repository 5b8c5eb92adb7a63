"""What sandboxes may reach, as data, and the firewall's text made from it. Pure: the same policy gives the same text.

Everything keys on the interface prefix of the instance, so that a sandbox comes and goes without a rule being touched.
"""

from dataclasses import dataclass
from ipaddress import IPv4Network

from skerry.node.network.addressing import AddressPlan

# Every special-purpose range of the IANA registry (RFC 6890) that is not a part of the public internet, and the one
# metadata service that hides behind a public address. Metadata of the others is link-local or in 100.64.0.0/10.
SPECIAL_PURPOSE: tuple[IPv4Network, ...] = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network; Linux takes 0.0.0.0 for the host itself
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, overlay networks, a cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's wire server
        "169.254.0.0/16",  # link-local, metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, a cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays: a way into IPv6
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
CONNECTIONS_PER_SANDBOX = 8192  # the host's table of connections is shared: one sandbox must not fill it
DNS_QUERIES_PER_SECOND = 500
FORWARDING_TABLE = "skerry_forwarding"


@dataclass(frozen=True, slots=True)
class Policy:
    """The desired state of one instance's firewall."""

    plan: AddressPlan
    denied: tuple[IPv4Network, ...] = SPECIAL_PURPOSE

    @property
    def table(self) -> str:
        return f"skerry_{self.plan.instance}"


def ruleset(policy: Policy) -> str:
    """The whole table, for `nft -f`: loading it replaces the one before in one transaction."""
    sandboxes = f'"{policy.plan.interface_prefix}*"'
    gateway, network = policy.plan.gateway, policy.plan.network
    denied = ", ".join(str(n) for n in (*policy.denied, network))
    return f"""\
table inet {policy.table} {{}}
delete table inet {policy.table}
table inet {policy.table} {{
    set denied {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {denied} }}; }}
    set connections {{ type ipv4_addr; flags dynamic; size 65535; }}
    set queries {{ type ipv4_addr; flags dynamic,timeout; size 65535; timeout 10s; }}

    # Before any destination NAT of the host's: what a sandbox asked for is judged, not what it was turned into.
    chain prerouting {{
        type filter hook prerouting priority mangle; policy accept;
        iifname {sandboxes} jump sent
    }}
    chain sent {{
        meta nfproto != ipv4 drop
        ip saddr != {network} drop
        # The only route through a sandbox's link is the one to its own address.
        fib saddr . iif oif missing drop
        ip option lsrr exists drop
        ip option ssrr exists drop
        ct state invalid drop
        ct state new add @connections {{ ip saddr ct count over {CONNECTIONS_PER_SANDBOX} }} drop
        ip daddr {gateway} meta l4proto {{ tcp, udp }} th dport 53 goto ask
        ip daddr @denied goto refuse
        fib daddr type != unicast goto refuse
    }}
    chain ask {{
        meta l4proto tcp accept
        update @queries {{ ip saddr limit rate over {DNS_QUERIES_PER_SECOND}/second burst 1000 packets }} drop
        accept
    }}
    # Told at once, a program fails at once instead of waiting for a timeout.
    chain refuse {{
        reject with icmpx admin-prohibited
    }}

    chain input {{
        type filter hook input priority filter; policy accept;
        iifname {sandboxes} jump to_host
        iifname != {sandboxes} ip daddr {gateway} drop
    }}
    chain to_host {{
        ip daddr {gateway} meta l4proto {{ tcp, udp }} th dport 53 accept
        drop
    }}

    chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname {sandboxes} goto outward
        oifname {sandboxes} goto inward
    }}
    chain outward {{
        oifname {sandboxes} goto refuse
        ip daddr @denied goto refuse
        tcp flags syn / syn,rst tcp option maxseg size set rt mtu
        accept
    }}
    chain inward {{
        ct state established,related ct direction reply accept
        drop
    }}

    # The host's own programs, too, answer sandboxes and never call on them.
    chain output {{
        type filter hook output priority filter; policy accept;
        oifname {sandboxes} ct state established,related accept
        oifname {sandboxes} drop
    }}

    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {network} oifname != {sandboxes} masquerade fully-random
    }}
}}
"""


def forwarding_guard(uplinks: tuple[str, ...]) -> str:
    """A table that all instances on a host share: `uplinks` forward for sandboxes' sake only.

    The host did not route before the first instance came. It still routes nothing but sandboxes' traffic, and what
    some other program redirects on purpose (published ports of containers).
    """
    names = ", ".join(f'"{name}"' for name in uplinks)
    return f"""\
table inet {FORWARDING_TABLE} {{
    set uplinks {{ type ifname; }}
    chain forward {{
        type filter hook forward priority filter; policy accept;
    }}
    chain guard {{
    }}
}}
flush chain inet {FORWARDING_TABLE} forward
flush chain inet {FORWARDING_TABLE} guard
table inet {FORWARDING_TABLE} {{
    chain forward {{
        iifname @uplinks oifname != "sk*" goto guard
    }}
    chain guard {{
        ct state established,related accept
        ct status dnat accept
        drop
    }}
}}
add element inet {FORWARDING_TABLE} uplinks {{ {names} }}
"""
