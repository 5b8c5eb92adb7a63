"""An OCI runtime on one host."""

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from skerry.model.bundle import Bundle
from skerry.model.capability import Probe
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Cause
from skerry.model.metrics import Usage


class Runtime(Protocol):
    """An OCI runtime on this host. Called by the node alone; every verb has a deadline and may be called twice."""

    name: str
    shares_kernel: bool
    needs_id_range: bool  # runs in a user namespace: the bundle carries a range of host ids, the layers are id-mapped

    async def version(self) -> str: ...

    async def probe(self) -> Probe:
        """Boot a real, empty sandbox under a deadline. Never raises: what went wrong is in the probe."""
        ...

    async def expect_start(self) -> None:
        """Prepare what a `start` in the next milliseconds would have to wait for. Never raises; need not be called.

        It is called while the parts of a bundle are being made, and not waited for.
        """
        ...

    async def start(self, bundle: Bundle) -> socket.socket:
        """Create and start the sandbox; the host's end of its stdio socketpair (non-blocking).

        Raises:
            Refused: The runtime would not; the message has its own last words. Nothing is left behind.
        """
        ...

    async def bridge(self, sandbox_id: SandboxId) -> socket.socket:
        """Execute `sbxd bridge` in a running sandbox; a socket joined to its stdio. Closing it ends the bridge.

        Raises:
            SandboxGone: It does not run.
        """
        ...

    async def running(self, sandbox_id: SandboxId) -> bool: ...

    async def wait_dead(self, sandbox_id: SandboxId) -> Cause:
        """Return when the sandbox has died, with why (`oom` told from `runtime_died`)."""
        ...

    async def usage(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Usage]:
        """What these use now, as the host counts it. Those that are gone are left out."""
        ...

    async def oom_kills(self, sandbox_id: SandboxId) -> int:
        """How often the kernel has killed for the sandbox's memory limit. 0 when it is gone."""
        ...

    async def delete(self, sandbox_id: SandboxId) -> None:
        """Kill and remove all the runtime holds of it, cgroups included. Unknown: success."""
        ...

    async def list(self) -> set[SandboxId]:
        """What the runtime knows of this instance, running or not."""
        ...
