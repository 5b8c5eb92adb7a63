"""Forks: new sandboxes with a copy of another one's files and configuration. The source goes on undisturbed."""

from collections.abc import Mapping

from skerry.control.deps import Deps
from skerry.model.errors import SkerryError
from skerry.model.ids import AccountId
from skerry.model.request import Once
from skerry.model.sandbox import Sandbox

MOST = 100


async def fork(
    deps: Deps,
    account_id: AccountId,
    sandbox_id: str,
    *,
    count: int = 1,
    name: str | None = None,
    metadata: Mapping[str, object] | None = None,
    once: Once | None = None,
) -> list[Sandbox | SkerryError]:
    """`count` copies, all of one instant, in the order they were asked for: each runs, or is the error that it met.

    The source may run, be stopped or stopping, or have failed. Copied: files, template, limits, timeout, network, env,
    startup command, capabilities, idle timeout. Not copied: processes, history, name, metadata.

    Raises:
        NotFound: As `sandboxes.get`.
        Invalid: `count` is not 1 to MOST.
        Conflict: `sandbox_<state>`: the source is destroyed, or could not be made. `files_lost`: of its files nothing
            is left. The key of `once` is another request's.
        TooBusy, Unavailable: The copy of the source's files could not be made; no sandbox was.
    """
    raise NotImplementedError
