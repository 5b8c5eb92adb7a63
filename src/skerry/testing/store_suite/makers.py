"""Records to test stores with."""

from datetime import UTC, datetime

from skerry.model.account import Account, ApiKey, hash_secret, new_secret
from skerry.model.capture import Archive
from skerry.model.command import Command, CommandStatus
from skerry.model.ids import (
    CommandId,
    new_account_id,
    new_archive_id,
    new_command_id,
    new_key_id,
    new_project_id,
    new_sandbox_id,
    new_shell_id,
    new_snapshot_id,
)
from skerry.model.lifecycle import Event, State
from skerry.model.sandbox import Limits, NetworkMode, Placement, Sandbox
from skerry.model.shell import ShellSession, ShellState
from skerry.model.snapshot import Snapshot, SnapshotState
from skerry.seams import Store

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PLACEMENT = Placement("crun", "sha256:1")


async def add_account(store: Store, name: str = "one") -> Account:
    account = Account(new_account_id(), name, "unlimited", new_project_id(), NOW)
    await store.add_account(account, ApiKey(new_key_id(), account.id, "first", hash_secret(new_secret()), NOW))
    return account


def sandbox_of(account: Account, metadata: dict[str, object] | None = None) -> Sandbox:
    return Sandbox(
        id=new_sandbox_id(),
        account_id=account.id,
        project_id=account.default_project_id,
        state=State.CREATING,
        generation=1,
        name="a name ✓",
        template="python",
        limits=Limits(memory_mb=77),
        timeout_s=9,
        network_mode=NetworkMode.NONE,
        created_at=NOW,
        updated_at=NOW,
        env={"A": "1\n2"},
        metadata=metadata or {},
        model={"any": ["thing"]},
    )


async def add_sandbox(store: Store, account: Account, metadata: dict[str, object] | None = None) -> Sandbox:
    sandbox = sandbox_of(account, metadata)
    await store.add_sandbox(sandbox)
    return sandbox


async def add_running(store: Store, account: Account, metadata: dict[str, object] | None = None) -> Sandbox:
    return await store.transition(await add_sandbox(store, account, metadata), Event.CREATED, placement=PLACEMENT)


def archive_of(size_bytes: int = 5) -> Archive:
    return Archive(new_archive_id(), size_bytes, stored_bytes=3, entries=2, skipped=1)


def snapshot_of(sandbox: Sandbox) -> Snapshot:
    return Snapshot(
        id=new_snapshot_id(),
        account_id=sandbox.account_id,
        project_id=sandbox.project_id,
        state=SnapshotState.CREATING,
        name="a name ✓",
        source_sandbox_id=sandbox.id,
        template="node",
        limits=Limits(memory_mb=78),
        timeout_s=8,
        network_mode=NetworkMode.NONE,
        created_at=NOW,
        updated_at=NOW,
        env={"A": "1\n2"},
        startup_command="up",
        idle_timeout_s=60,
        capabilities=("one", "two"),
    )


def command_of(sandbox: Sandbox, command_id: CommandId | None = None) -> Command:
    return Command(
        command_id or new_command_id(),
        sandbox.id,
        sandbox.account_id,
        "echo 'hi'",
        CommandStatus.RUNNING,
        "/workspace",
        120,
        NOW,
    )


def shell_of(sandbox: Sandbox) -> ShellSession:
    state = ShellState("/tmp/\udcff\n", {"A": "\udcfe\n✓"}, frozenset({"B", "C"}))
    return ShellSession(new_shell_id(), sandbox.id, sandbox.account_id, NOW, NOW, state)
