"""All that an instance with its server running holds of the host, as lines: to see that a crash leaked nothing."""

import subprocess
from dataclasses import astuple

from node.leaks import held

from skerry.config import Config
from skerry.node import btrfs, quota

# Where the node keeps one entry a sandbox.
_DIRECTORIES = (
    "pool/sandboxes",
    "pool/captures",
    "pool/mounts",
    "node/sandboxes",
    "node/bundles",
    "node/archives/stat",
    "run/netns",
)
_LEVEL_1 = 1 << 48  # a group a sandbox; those below are of single subvolumes, the templates' among them


def held_by(config: Config) -> frozenset[str]:
    """What is there now. Without sandboxes this is the same whenever it is asked."""
    found = [line for lines in astuple(held(config)) for line in lines]
    for name in _DIRECTORIES:
        directory = config.home / name
        found += [f"{name}/{entry.name}" for entry in directory.iterdir()] if directory.is_dir() else []
    return frozenset([*found, *_groups(config), *_firewall(config)])


def _groups(config: Config) -> list[str]:
    with btrfs.opened(config.pool_dir) as fd:
        return [f"quota group {group:x}" for group in quota.groups(fd) if group >= _LEVEL_1]


def _firewall(config: Config) -> list[str]:
    """The instance's tables. What counts connections and queries by itself (`-t`) is no sandbox's and passes."""
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    names = [line.split()[1:] for line in tables.splitlines() if config.instance in line]
    return [_listing(family, name) for family, name in names]


def _listing(family: str, name: str) -> str:
    command = ["nft", "-s", "-t", "list", "table", family, name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
