"""Sandboxes on their way from one state to another: waited for, with what they tell of it."""

import time
from collections.abc import Callable

from skerry.sdk._sync.clock import sleep
from skerry.sdk._sync.http import Http
from skerry.sdk.requests import answer_of
from skerry.wire.sandboxes import SandboxView

FIRST_LOOK_S, LONGEST_S = 0.1, 1.0
SHOWN_S = 0.3  # between two looks where somebody watches

OnProgress = Callable[[int, int | None], object]
"""Is told how many bytes are done, of how many (None: not known yet)."""


def while_stopping(
    http: Http, view: SandboxView, *, patience_s: float | None, on_progress: OnProgress | None = None
) -> SandboxView:
    """Look at a sandbox while it is `stopping` and does not tell of trouble, within the patience. The last answer."""
    deadline = None if patience_s is None else time.monotonic() + patience_s
    pause = FIRST_LOOK_S
    while view.status == "stopping" and not view.message:
        if on_progress is not None and view.progress is not None:
            on_progress(view.progress.done_bytes, view.progress.total_bytes)
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        sleep(pause if left is None else min(pause, left))
        pause = min(pause * 2, LONGEST_S if on_progress is None else SHOWN_S)
        view = answer_of(SandboxView, http.call("GET", f"/v1/sandboxes/{view.id}"))
    return view
