"""Sandboxes as the API shows them: the record, and what is known beside it. A page costs no question a sandbox."""

from collections.abc import Sequence

from skerry.api.call import Call
from skerry.api.render import sandbox_view
from skerry.control import idleness
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import State
from skerry.model.sandbox import Sandbox
from skerry.wire.sandboxes import SandboxView


async def shown(call: Call, sandbox: Sandbox) -> SandboxView:
    """One sandbox, with the values of its environment."""
    busy = await _busy(call, [sandbox])
    return sandbox_view(
        sandbox,
        busy=sandbox.id in busy,
        idle=idleness.idleness_of(call.deps, sandbox, busy=sandbox.id in busy),
        progress=call.deps.progress.get(sandbox.id),
    )


async def shown_page(call: Call, page: Sequence[Sandbox], *, busy: bool | None) -> list[SandboxView]:
    """A page of a list. `busy`: what its query has looked for already. Its word stands: a page shows what was asked."""
    working = await _busy(call, page) if busy is None else {s.id for s in page if busy and s.state is State.RUNNING}
    return [
        sandbox_view(
            sandbox,
            busy=sandbox.id in working,
            idle=idleness.idleness_of(call.deps, sandbox, busy=sandbox.id in working),
            progress=call.deps.progress.get(sandbox.id),
            secrets=False,
        )
        for sandbox in page
    ]


async def _busy(call: Call, sandboxes: Sequence[Sandbox]) -> set[SandboxId]:
    running = [sandbox.id for sandbox in sandboxes if sandbox.state is State.RUNNING]
    return await call.deps.store.busy_sandboxes(running) if running else set()
