"""What an instance holds of the host: for the check after every test that nothing of it is left.

before the test:  nothing to do
after it:         await assert_nothing_left(config)
"""

import asyncio
import os
import time
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from skerry.config import Config

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Held:
    """Everything that names the instance or lies under its home. Each is a line to read in a failure."""

    mounts: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    zombies: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    runtime_records: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(
            (self.mounts, self.cgroups, self.processes, self.zombies, self.interfaces, self.runtime_records),
        )


def held(config: Config) -> Held:
    """What is there now."""
    processes, zombies = _processes(config)
    return Held(
        mounts=_mounts(config.home),
        cgroups=tuple(str(path) for path in _cgroups(config.instance)),
        processes=processes,
        zombies=zombies,
        interfaces=tuple(path.name for path in Path("/sys/class/net").iterdir() if config.instance in path.name),
        runtime_records=tuple(str(path) for path in (config.node_dir / "rt").glob("*/*/*/*")),
    )


async def assert_nothing_left(config: Config, *, deadline_s: float = 5.0, keep: Held | None = None) -> None:
    """Wait until the instance holds nothing (or no more than `keep`), and fail with the list when it does not."""
    until = time.monotonic() + deadline_s
    while (now := held(config)) and now != keep:
        if time.monotonic() > until:
            raise AssertionError(f"Left on the host: {now}")
        await asyncio.sleep(0.01)


def _mounts(home: Path) -> tuple[str, ...]:
    prefix = f"{home.absolute()}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return tuple(target for line in lines if (target := line.split()[4]).startswith(prefix))


def _cgroups(instance: str) -> list[Path]:
    """The sandboxes' own; the instance's empty parent does not count."""
    # `glob` passes over what vanishes while it looks (other instances come and go); `Path.glob` does not.
    depths = ("", "*/", "*/*/", "*/*/*/")
    return [Path(path) for depth in depths for path in glob(f"{CGROUPS}/{depth}skerry-{instance}/*/")]  # noqa: PTH207


def _processes(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    alive: list[str] = []
    dead: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cgroup = (entry / "cgroup").read_text()
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        if state == "Z" and int(parent) == os.getpid():
            dead.append(stat[:60])
        ours = f"skerry-{config.instance}/" in cgroup or f"{config.home.absolute()}/" in command
        if ours and state != "Z" and int(entry.name) != os.getpid():
            alive.append(f"{entry.name} {command}")
    return tuple(alive), tuple(dead)
