"""Resuming: new compute under the same id, around the files that the node has, else those in the object store."""

from skerry.control.deps import Deps
from skerry.model.ids import AccountId
from skerry.model.sandbox import Sandbox


async def resume(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sandbox:
    """Bring a sandbox up again and return it running. Runs already: the same. Many at once: one does it, all wait.

    From `stopped`, from `stopping` (its archive is broken off), and from `failed`, unless it could not be made at all.

    Raises:
        NotFound: As `sandboxes.get`.
        Conflict: `sandbox_<state>`: it is destroyed, or could not be made. `files_lost`: nothing is left of its files.
        Refused, TooBusy, Unavailable, DeadlineExceeded: It was tried and failed; it is on its way back to `stopped`.
    """
    raise NotImplementedError
