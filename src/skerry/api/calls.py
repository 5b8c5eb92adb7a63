"""How many calls are in progress at once: of one account, and of all. Beyond it the next one is refused unopened.

A call is anything that has been let in and not been answered to its end: a stream of events, a socket, an upload that
creeps, a command that is waited for. Counts those of this process; knows nothing of what they do.
"""

import re
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

from skerry.config import Config
from skerry.model.errors import TooBusy
from skerry.model.ids import AccountId

RETRY_AFTER_S = 1.0
# What gives something back takes no body and ends soon: whoever is at the limit can help themselves.
_ENDS = re.compile(r"/v1/commands/[^/]+/kill")


class Calls:
    """One a process. `max_calls_per_account` and `max_calls` are the bounds."""

    def __init__(self, config: Config) -> None:
        self._each, self._all = config.max_calls_per_account, config.max_calls
        self._of: dict[AccountId, int] = {}
        self._count = 0

    @contextmanager
    def held(self, scope: MutableMapping[str, Any], account_id: AccountId) -> Generator[None]:
        """A call of this account, while inside.

        Raises:
            TooBusy: There are as many as there may be; nothing of this one has been looked at.
        """
        mine = self._of.get(account_id, 0)
        if (mine >= self._each or self._count >= self._all) and not _gives_back(scope):
            raise self._refusal(mine)
        self._of[account_id] = mine + 1
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._of[account_id] -= 1
            if not self._of[account_id]:
                del self._of[account_id]

    def _refusal(self, mine: int) -> TooBusy:
        if mine >= self._each:
            return TooBusy(
                f"{mine} calls of this account are in progress, as many as may be at once (streams, sockets, uploads"
                " and commands that are waited for, too). End some, or raise the server's 'max_calls_per_account'.",
                retry_after_s=RETRY_AFTER_S,
                code="too_many_calls",
            )
        return TooBusy(
            f"The server has {self._count} calls in progress, as many as its 'max_calls' allows. Try again soon.",
            retry_after_s=RETRY_AFTER_S,
            code="server_full",
        )


def _gives_back(scope: MutableMapping[str, Any]) -> bool:
    method = scope.get("method")
    return method == "DELETE" or (method == "POST" and _ENDS.fullmatch(scope["path"]) is not None)
