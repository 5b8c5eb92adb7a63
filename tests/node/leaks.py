"""What an instance holds of the host: for the check after every test that nothing of it is left.

before the test:  since = moment()
after it:         await assert_nothing_left(config, since=since)
"""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from skerry.config import Config
from skerry.node.processes import ORPHAN_GRACE_S

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


def moment() -> float:
    """Now, in seconds since the host's start, as /proc tells a process's start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def held(config: Config, since: float | None = None) -> Held:
    """What is there now. Unreaped children count where this process runs the runtime itself: those since `since`."""
    processes, zombies = _processes(config, since)
    return Held(
        mounts=_mounts(config.home),
        cgroups=tuple(str(path) for path in _cgroups(config.instance)),
        processes=processes,
        zombies=zombies,
        interfaces=tuple(path.name for path in Path("/sys/class/net").iterdir() if config.instance in path.name),
        # crun keeps compiled seccomp filters there, one for all sandboxes.
        runtime_records=tuple(str(path) for path in (config.node_dir / "rt").glob("*/*/*/*") if path.name != ".cache"),
    )


# An orphan that nobody waits for is reaped after a while.
SETTLED_S = ORPHAN_GRACE_S + 5


async def assert_nothing_left(config: Config, *, deadline_s: float = SETTLED_S, since: float | None = None) -> None:
    """Wait until the instance holds nothing, and fail with the list when that does not come."""
    until = time.monotonic() + deadline_s
    while now := held(config, since):
        if time.monotonic() > until:
            raise AssertionError(f"Left on the host: {now}")
        await asyncio.sleep(0.01)


def _mounts(home: Path) -> tuple[str, ...]:
    prefix = f"{home.absolute()}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return tuple(target for line in lines if (target := line.split()[4]).startswith(prefix))


def _cgroups(instance: str) -> list[Path]:
    """The sandboxes' own; the instance's empty parent does not count."""
    found: list[Path] = []
    # Not glob: it fails when another instance's cgroup goes away under it.
    for top, directories, _ in os.walk(CGROUPS):
        if top.endswith(f"/skerry-{instance}"):
            found += [Path(top) / name for name in directories]
        if len(Path(top).relative_to(CGROUPS).parts) > 3:
            directories.clear()
    return found


def _processes(config: Config, since: float | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    alive: list[str] = []
    dead: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cgroup = (entry / "cgroup").read_text()
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        state, parent, begun = fields[0], int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if state == "Z" and parent == os.getpid() and since is not None and begun >= since - 0.1:
            dead.append(stat[:60])
        ours = f"skerry-{config.instance}/" in cgroup or f"{config.home.absolute()}/" in command
        if ours and state != "Z" and int(entry.name) != os.getpid():
            alive.append(f"{entry.name} {command}")
    return tuple(alive), tuple(dead)
