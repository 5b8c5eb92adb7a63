"""Requests that are sent again: under one key of the client's, one thing is made, however often and when it asks.

What stands for a key is on record, in the transaction that made it. An attempt that came to nothing (a failed
create, a command that did not start) gives the key back: sent again, it is tried again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar, cast

from skerry.control.deps import Deps
from skerry.model.ids import AccountId
from skerry.model.request import Once, mismatch

KEEP = timedelta(hours=24)

T = TypeVar("T")


async def shared(deps: Deps, account_id: AccountId, once: Once, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `attempt` gives; of equal requests at once one is made, and all get its answer, or its error.

    Raises:
        Conflict: The key is another request's, which is being answered (`idempotency_mismatch`).
    """
    place = (account_id, once.key)
    running = deps.attempts.get(place)
    if running is None:
        task = deps.tasks.spawn(attempt(), name="request under a key")
        deps.attempts[place] = running = (once.fingerprint, task)
        task.add_done_callback(lambda _: deps.attempts.pop(place))
    elif running[0] != once.fingerprint:
        raise mismatch(once.key)
    return await asyncio.shield(cast("asyncio.Task[T]", running[1]))
