"""Coming back into a sandbox whose connection broke: again and again for a while, then never. Knows no records.

A while, not a count: whoever is inside can make single tries fail, by taking the few places that sbxd has for those who
have not proved themselves yet. A user who is not root only slows the way; root inside can keep it shut, and loses the
sandbox by it. No other sandbox waits for that.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from skerry.model.errors import SkerryError, Unavailable
from skerry.model.ids import SandboxId

T = TypeVar("T")

RETURN_S = 30.0
ADOPT_S = 5.0  # what the start of a node waits for one sandbox; what takes longer goes on beside it
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0

log = structlog.get_logger()


async def come_back(
    sandbox_id: SandboxId, attempt: Callable[[], Awaitable[T]], wanted: Callable[[], bool], *, within_s: float
) -> T | SkerryError:
    """What `attempt` gives at last; its last error where it gave nothing in time, or is not wanted any more."""
    until, pause = time.monotonic() + within_s, FIRST_PAUSE_S
    error: SkerryError = Unavailable("It is not wanted any more.")
    while wanted():
        try:
            return await attempt()
        except (SkerryError, OSError) as failed:
            error = failed if isinstance(failed, SkerryError) else Unavailable(str(failed))
        left = until - time.monotonic()
        log.warning("no way into a sandbox", sandbox_id=sandbox_id, seconds_left=round(left, 1), error=error.message)
        if left <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 2, LONGEST_PAUSE_S)
    return error
