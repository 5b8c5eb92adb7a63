"""What an account uses, beside what its plan allows. Counts only; enforces nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.control.deps import Deps
from skerry.model.account import Account
from skerry.model.ids import AccountId
from skerry.model.lifecycle import State

# A sandbox in one of these has no memory and no CPU of its own; its files are still there.
_WITHOUT_COMPUTE = frozenset({State.STOPPING, State.STOPPED, State.FAILED, State.DESTROYED})


@dataclass(frozen=True, slots=True)
class Usage:
    """`sandboxes` by their status on the wire, destroyed ones left out. Memory, CPU and disk are what was promised."""

    account: Account
    sandboxes: Mapping[str, int]
    running_commands: int
    memory_mb: int
    cpu_millis: int
    disk_mb: int


async def get(deps: Deps, account_id: AccountId) -> Usage:
    """The account's use now."""
    account = await deps.store.get_account(account_id)
    promised = await deps.store.promised(account_id)
    running = await deps.store.running_commands(account_id)
    computing = [each for each in promised if each.state not in _WITHOUT_COMPUTE]
    counts = {state.value: 0 for state in State if state not in (State.RUNNING, State.DESTROYED)}
    counts |= {each.state.value: each.sandboxes for each in promised if each.state is not State.RUNNING}
    up = sum(each.sandboxes for each in promised if each.state is State.RUNNING)
    active = min(up, len(running))  # a command may outlive its sandbox for the moment until it is settled
    return Usage(
        account,
        {"ready": up - active, "active": active, **counts},
        sum(running.values()),
        sum(each.memory_mb for each in computing),
        sum(each.cpu_millis for each in computing),
        sum(each.disk_mb for each in promised),
    )
