"""OCI runtimes, the only place that tells one from another: which there are, and which one this instance uses.

The choice is pinned, and changes only when another is asked for and no sandbox is on it. It never changes by itself: a
pinned runtime that stops working refuses.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from skerry.config import Config
from skerry.model.errors import Refused
from skerry.node.records import made_in
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
    return config.runtime_pin


def check(config: Config) -> str:
    """The name of the runtime that `choose` would take, as far as that can be told without booting it.

    It is the configured one. Where another is pinned, that stands for as long as there is a sandbox on it: each
    sandbox ends its life on the runtime that it was made on.

    Raises:
        Refused: It shares the host's kernel and that was not permitted, or sandboxes are on the pinned one; what to do.
    """
    pin, pinned = pin_file(config), _pinned(config)
    if pinned is not None and pinned not in DRIVERS:
        raise Refused(f"{pin} names the runtime '{pinned}', which is unknown. Known: {', '.join(DRIVERS)}.")
    name = config.runtime
    if pinned not in (None, name) and (count := made_in(config.node_dir / "sandboxes")):
        raise Refused(
            f"Sandboxes of this instance ({count}) are on the runtime {pinned}, so it cannot change to {name}. Keep"
            f" {pinned} (--runtime {pinned}, or leave it out of the settings), or destroy them (`skerry ls`,"
            f" `skerry rm`) and ask again.",
            code="runtime_pinned",
        )
    if DRIVERS[name].shares_kernel and not config.allow_shared_kernel:
        raise Refused(
            f"The runtime {name} shares the host's kernel with the sandboxes, which is weaker isolation than runsc's."
            " Permit it with the setting 'allow_shared_kernel' (SKERRY_ALLOW_SHARED_KERNEL=true), or use runsc.",
            code="shared_kernel",
        )
    return name


async def choose(config: Config) -> CommandLine:
    """The runtime of this instance: see `check`. One that is not pinned yet is, once it has booted.

    Raises:
        Refused: As `check`; or it does not boot, with why and what to do. The pin stays what it was.
    """
    name, pin = check(config), pin_file(config)
    forget_other_boots(config)
    runtime = RUNTIMES[name](config)
    probe = await runtime.probe()
    pinned = _pinned(config) == name
    if not probe.ok:
        await runtime.close()
        raise Refused(_why_not(name, pinned, f"{probe.detail} {probe.remedy}"), code="runtime_probe")
    if not pinned:
        pin.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        fresh = pin.with_name(pin.name + ".new")
        fresh.write_text(name + "\n")
        fresh.replace(pin)
    return runtime


def _pinned(config: Config) -> str | None:
    try:
        return pin_file(config).read_text().strip()
    except FileNotFoundError:
        return None


def _why_not(name: str, pinned: bool, reason: str) -> str:
    if not pinned:
        return f"The runtime {name} does not work on this host: {reason}"
    return (
        f"The runtime {name}, which this instance is pinned to, does not work any more: {reason}"
        " Skerry does not change to another by itself. To choose anew, destroy all sandboxes and start with --runtime."
    )
