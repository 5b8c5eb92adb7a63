"""What is held and on no record: what it is, and what becomes of it."""

from dataclasses import dataclass
from enum import StrEnum


class LeakKind(StrEnum):
    """Of a node: all up to STAT_CACHE. The others are found by comparing the records with what a provider holds."""

    CONTAINER = "container"
    MOUNT = "mount"
    NETNS = "netns"
    INTERFACE = "interface"
    NFT_RULES = "nft_rules"
    SUBVOLUME = "subvolume"
    QUOTA_GROUP = "quota_group"
    HALF_TREE = "half_tree"
    BUNDLE = "bundle"
    STAT_CACHE = "stat_cache"
    SANDBOX = "sandbox"
    TREE = "tree"
    SNAPSHOT = "snapshot"
    ARCHIVES = "archives"


@dataclass(frozen=True, slots=True)
class Leak:
    """`fate`: what will happen to it, or how to remove it. `waiting`: it is in its time of grace, and no leak yet."""

    kind: LeakKind
    name: str
    fate: str
    size_bytes: int | None = None  # None where it is not known
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Leaks:
    """What one look found. `unchecked` says in words what could not be looked at."""

    found: tuple[Leak, ...] = ()
    unchecked: tuple[str, ...] = ()
