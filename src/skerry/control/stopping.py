"""Stopping: the compute ends at once, the files go to the object store, and only then is the sandbox `stopped`."""

from skerry.control.deps import Deps
from skerry.model.ids import AccountId
from skerry.model.sandbox import Sandbox

WAIT_S = 30.0


async def stop(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, force: bool = False, wait_s: float | None = None
) -> Sandbox:
    """Free a sandbox's compute and store its files. Safe to call twice, and at once.

    Returns when it is stopped, when storing its files has failed for now (it stays `stopping`, its `detail` says why,
    and it is tried again), or after `wait_s` (None: WAIT_S) while the files are on their way. How far they are is in
    `deps.progress`. One that was resumed by somebody meanwhile is returned as it is then.

    Raises:
        NotFound: As `sandboxes.get`.
        Conflict: `sandbox_busy`: a command runs and `force` was not given. `storage_disabled`: this server keeps no
            files of stopped sandboxes. `sandbox_<state>`: it is destroyed, or could not be made.
        Unavailable, DeadlineExceeded: It is on record, and is finished as soon as the node answers.
    """
    raise NotImplementedError
