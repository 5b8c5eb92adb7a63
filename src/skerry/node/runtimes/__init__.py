"""OCI runtimes, the only place that tells one from another: which there are, and which one this instance uses.

The choice is made once and pinned. It is never made weaker later: a pinned runtime that stops working refuses.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from skerry.config import Config
from skerry.model.errors import Refused
from skerry.node.runtimes.command_line import CommandLine, Driver, forget_other_boots
from skerry.node.runtimes.crun import CRUN
from skerry.node.runtimes.runc import RUNC
from skerry.node.runtimes.runsc import RUNSC

DRIVERS: dict[str, Driver] = {driver.name: driver for driver in (RUNSC, CRUN, RUNC)}
RUNTIMES: dict[str, Callable[[Config], CommandLine]] = {
    name: partial(CommandLine, driver) for name, driver in DRIVERS.items()
}


def pin_file(config: Config) -> Path:
    """Where the choice is kept: one line, the runtime's name."""
    return config.node_dir / "runtime"


async def choose(config: Config) -> CommandLine:
    """The runtime of this instance: the pinned one, else the configured one, which is pinned once it has booted.

    Raises:
        Refused: It shares the host's kernel and that was not permitted; or it does not boot, with why and what to do.
    """
    pin = pin_file(config)
    pinned = pin.read_text().strip() if pin.exists() else None
    name = pinned or config.runtime
    if name not in DRIVERS:
        raise Refused(f"{pin} names the runtime '{name}', which is unknown. Known: {', '.join(DRIVERS)}.")
    if DRIVERS[name].shares_kernel and not config.allow_shared_kernel:
        raise Refused(
            f"The runtime {name} shares the host's kernel with the sandboxes, which is weaker isolation than runsc's."
            " Permit it with the setting 'allow_shared_kernel' (SKERRY_ALLOW_SHARED_KERNEL=true), or use runsc.",
            code="shared_kernel",
        )
    forget_other_boots(config)
    runtime = RUNTIMES[name](config)
    probe = await runtime.probe()
    if not probe.ok:
        await runtime.close()
        raise Refused(_why_not(name, pinned is not None, f"{probe.detail} {probe.remedy}", pin), code="runtime_probe")
    if pinned is None:
        pin.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        pin.write_text(name + "\n")
    return runtime


def _why_not(name: str, pinned: bool, reason: str, pin: Path) -> str:
    if not pinned:
        return f"The runtime {name} does not work on this host: {reason}"
    return (
        f"The runtime {name}, which this instance is pinned to, does not work any more: {reason}"
        f" Skerry does not change to another by itself. To choose anew, destroy all sandboxes and remove {pin}."
    )
