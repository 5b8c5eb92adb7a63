"""What a sandbox uses, for its owner. Decides who may see which part; the numbers are the provider's."""

from datetime import datetime

from skerry.control import sandboxes
from skerry.control.deps import Deps
from skerry.model.errors import Conflict, Invalid, NotFound
from skerry.model.ids import AccountId
from skerry.model.lifecycle import State
from skerry.model.metrics import Metrics, thinned
from skerry.model.sandbox import Sandbox

_WITHOUT = (State.CREATING, State.DESTROYING, State.DESTROYED)


async def get(
    deps: Deps,
    account_id: AccountId,
    sandbox_id: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    step_s: int | None = None,
) -> tuple[Sandbox, Metrics]:
    """The sandbox, and what it uses and used from `since` up to `until`: the last sample of each `step_s` seconds.

    Raises:
        NotFound: No such sandbox in this account.
        Conflict: It is being made or destroyed (`sandbox_<state>`).
        Invalid: A time without a zone.
    """
    for name, when in (("since", since), ("until", until)):
        if when is not None and when.tzinfo is None:
            raise Invalid(f"'{name}' needs a time zone: 2030-01-31T12:00:00Z.", field=name)
    sandbox = await sandboxes.get(deps, account_id, sandbox_id)
    if sandbox.state in _WITHOUT:
        raise _has_none(sandbox)
    try:
        told = await deps.provider.metrics(sandbox.id)
    except NotFound as error:
        raise _has_none(await sandboxes.get(deps, account_id, sandbox_id)) from error
    history = [
        sample
        for sample in told.history
        if (since is None or sample.at >= since) and (until is None or sample.at <= until)
    ]
    return sandbox, Metrics(told.interval_s, told.now, thinned(history, step_s) if step_s else history)


def _has_none(sandbox: Sandbox) -> Conflict:
    return Conflict(
        f"Sandbox '{sandbox.id}' is {sandbox.state}: nothing is counted of it.", code=f"sandbox_{sandbox.state}"
    )
