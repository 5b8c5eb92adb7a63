"""What every Store does, as tests: one suite a noun. Inherit each and give it a `store` fixture of an empty store."""

from skerry.testing.store_suite.accounts import AccountsSuite
from skerry.testing.store_suite.commands import CommandsSuite
from skerry.testing.store_suite.lists import ListsSuite
from skerry.testing.store_suite.makers import (
    NOW,
    PLACEMENT,
    add_account,
    add_running,
    add_sandbox,
    archive_of,
    command_of,
    sandbox_of,
    shell_of,
    snapshot_of,
)
from skerry.testing.store_suite.requests import RequestsSuite
from skerry.testing.store_suite.sandboxes import SandboxesSuite
from skerry.testing.store_suite.shells import ShellsSuite
from skerry.testing.store_suite.snapshots import SnapshotsSuite
from skerry.testing.store_suite.startups import StartupsSuite

SUITES = (
    AccountsSuite,
    CommandsSuite,
    ListsSuite,
    RequestsSuite,
    SandboxesSuite,
    ShellsSuite,
    SnapshotsSuite,
    StartupsSuite,
)

__all__ = [
    "NOW",
    "PLACEMENT",
    "SUITES",
    "AccountsSuite",
    "CommandsSuite",
    "ListsSuite",
    "RequestsSuite",
    "SandboxesSuite",
    "ShellsSuite",
    "SnapshotsSuite",
    "StartupsSuite",
    "add_account",
    "add_running",
    "add_sandbox",
    "archive_of",
    "command_of",
    "sandbox_of",
    "shell_of",
    "snapshot_of",
]
