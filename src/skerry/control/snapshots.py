"""Snapshots: a sandbox's files and configuration as they were at one instant, which outlive it."""

from collections.abc import Sequence

from skerry.control.deps import Deps
from skerry.model.ids import AccountId, SnapshotId
from skerry.model.request import Once
from skerry.model.snapshot import Snapshot

NAME_LENGTH = 200


async def create(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, name: str | None = None, once: Once | None = None
) -> Snapshot:
    """Take a snapshot and return it `ready`. What runs is not disturbed. It is stored in the background.

    Raises:
        NotFound: As `sandboxes.get`.
        Conflict: `sandbox_<state>`: it is destroyed, or could not be made. `files_lost`: of its files nothing is left.
            The key of `once` is another request's.
        TooBusy, Unavailable, DeadlineExceeded: Nothing was made.
    """
    raise NotImplementedError


async def get(deps: Deps, account_id: AccountId, snapshot_id: str) -> Snapshot:
    """Raises NotFound when there is none, it is another account's, or it is being deleted."""
    raise NotImplementedError


async def list_page(
    deps: Deps,
    account_id: AccountId,
    *,
    source_sandbox_id: str | None = None,
    name: str | None = None,
    limit: int,
    before: str | None,
) -> tuple[Sequence[Snapshot], SnapshotId | None]:
    """One page, newest first, and the `before` of the next one. Those that are being deleted are left out.

    Raises:
        Invalid: `before` is no snapshot of this account.
    """
    raise NotImplementedError


async def delete(deps: Deps, account_id: AccountId, snapshot_id: str) -> None:
    """Delete a snapshot. Sandboxes that were made from it live on. Unknown or deleted already: NotFound.

    Raises:
        NotFound: As for `get`.
        Unavailable: It is on record, and is finished as soon as the node answers.
    """
    raise NotImplementedError
