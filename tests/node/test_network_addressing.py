"""Names and addresses of an instance: never two the same, never too long, and read back exactly."""

from ipaddress import IPv4Network

import pytest

from skerry.node.network.addressing import (
    CAPACITY,
    AddressPlan,
    candidates,
    first_free,
    index_of,
    parse_deny_reach,
)
from skerry.node.network.policy import Policy, ruleset

PLAN = AddressPlan("deadbeef", IPv4Network("10.200.0.0/16"))


def test_every_index_has_a_name_and_an_address_of_its_own() -> None:
    names = {PLAN.interface(i) for i in range(CAPACITY)}
    addresses = {PLAN.address(i) for i in range(CAPACITY)}
    assert len(names) == len(addresses) == CAPACITY
    assert max(map(len, names)) <= 15
    assert PLAN.gateway not in addresses
    assert all(a in PLAN.network for a in addresses)


def test_an_index_is_read_back_from_the_name() -> None:
    for index in (0, 1, 35, 36, 1295, 1296, CAPACITY - 1):
        assert index_of(PLAN.interface(index), "deadbeef") == index


@pytest.mark.parametrize(
    "name", ["eth0", "skdeadbeef", "skdeadbee0f", "skdeadbeefzzzz", "skdeadbeef-1", "xskdeadbeef1"]
)
def test_other_names_are_nobodys(name: str) -> None:
    assert index_of(name, "deadbeef") is None


def test_an_index_beyond_the_last_is_an_error() -> None:
    for index in (-1, CAPACITY):
        with pytest.raises(ValueError, match="outside"):
            PLAN.address(index)


@pytest.mark.parametrize("instance", ["00000000", "ffffffff", "deadbeef", "12345678"])
def test_all_candidates_are_visited_once(instance: str) -> None:
    found = list(candidates(instance))
    assert len(set(found)) == len(found) == 128
    assert all(n.subnet_of(IPv4Network("10.128.0.0/9")) and n.prefixlen == 16 for n in found)


def test_a_network_that_is_taken_is_passed_over() -> None:
    favourite, second = list(candidates("deadbeef"))[:2]
    assert first_free("deadbeef", []) == favourite
    assert first_free("deadbeef", [IPv4Network((favourite.network_address + 700, 32))]) == second
    assert first_free("deadbeef", [IPv4Network("10.0.0.0/8")]) is None


def test_denied_networks_are_read_and_ipv6_needs_no_rule() -> None:
    assert parse_deny_reach(" 8.8.0.0/16, 2001:db8::/32 ,9.9.9.9 ,") == (
        IPv4Network("8.8.0.0/16"),
        IPv4Network("9.9.9.9/32"),
    )


def test_the_same_policy_gives_the_same_text() -> None:
    assert ruleset(Policy(PLAN)) == ruleset(Policy(PLAN))
    assert ruleset(Policy(PLAN)) != ruleset(Policy(PLAN, denied=()))
