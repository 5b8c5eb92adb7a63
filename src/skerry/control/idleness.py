"""Idleness: what counts as use, how long ago it was, and when a sandbox that nobody uses is reclaimed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from skerry.control.deps import Deps
from skerry.model.ids import SandboxId
from skerry.model.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Idleness:
    """When a sandbox is reclaimed if nobody uses it from now on; None: it is not.

    `kept_awake_by` says what keeps it: `command` (one of the API's runs), `use` (a stream, an upload, a watch or a
    terminal with a client is open); empty with `reclaim_at` None: it does not run, or its idle timeout is 0.
    """

    reclaim_at: datetime | None = None
    kept_awake_by: tuple[str, ...] = ()


async def idleness(deps: Deps, sandbox: Sandbox) -> Idleness:
    """What the records and this process know. A look is no use."""
    raise NotImplementedError


@asynccontextmanager
async def using(deps: Deps, sandbox_id: SandboxId) -> AsyncGenerator[None]:
    """Inside, the sandbox is in use and is not reclaimed; its begin and its end are noted as activity.

    For what lasts: streams, uploads, watches, terminals with a client. A short call is noted by `sandboxes.awake`.
    """
    yield
    raise NotImplementedError
