"""Sandboxes made and destroyed by the hundred: nothing of them is left, anywhere."""

import os
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import Skerry

pytestmark = pytest.mark.long

CYCLES = {"crun": 300, "runsc": 80}
AT_ONCE = 8


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def on_the_host(server: Server) -> dict[str, set[str]]:
    """Everything on the host that is there for one sandbox, by kind."""
    config = server.config
    tag, home = config.instance, str(config.home)
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    rules = output("nft", "list", "table", "inet", f"skerry_{tag}").splitlines()
    subvolumes = output("btrfs", "subvolume", "list", str(config.pool_dir)).splitlines()
    return {
        "mounts": {mount for mount in mounts if mount.startswith(home)},
        "interfaces": {path.name for path in Path("/sys/class/net").iterdir() if tag in path.name},
        "nft": set(rules),
        "subvolumes": {line.split()[-1] for line in subvolumes},
        "cgroups": {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/skerry-{tag}/*/")},
        "netns": {path.name for path in (config.run_dir / "netns").iterdir()},
        "bundles": {path.name for path in (config.node_dir / "bundles").iterdir()},
        "records": {path.name for path in (config.node_dir / "sandboxes").iterdir()},
        "runtime's": {str(path) for path in (config.node_dir / "rt").glob("*/*/*/*") if "sbx_" in path.name},
        "processes": processes_of(server),
    }


def quota_groups(server: Server) -> set[str]:
    lines = output("btrfs", "qgroup", "show", str(server.config.pool_dir)).splitlines()
    return {line.split()[0] for line in lines if "/" in line.split()[0]}


def more_than(before: dict[str, set[str]], server: Server) -> dict[str, set[str]]:
    """What is there beyond `before`."""
    return {kind: new for kind, now in on_the_host(server).items() if (new := now - before[kind])}


def processes_of(server: Server) -> set[str]:
    found: set[str] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cgroup = (entry / "cgroup").read_text()
        except OSError:
            continue
        if f"skerry-{server.config.instance}/" in cgroup or (str(server.config.home) in words and "sbx_" in words):
            found.add(f"{entry.name} {words}")
    return found


def of_the_parts(server: Server) -> dict[str, int]:
    """Descriptors and threads of API and node."""
    return {
        f"{part} {what}": len(os.listdir(f"/proc/{server.pid(part)}/{place}"))  # noqa: PTH208
        for part in ("api", "node")
        for what, place in (("descriptors", "fd"), ("threads", "task"))
    }


def stuck_rows(server: Server) -> list[tuple[str, str]]:
    place = server.config.home / "api" / "skerry.db"
    with sqlite3.connect(f"file:{place}?mode=ro", uri=True) as database:
        boxes = database.execute(
            "SELECT id, state FROM sandboxes WHERE state NOT IN ('destroyed', 'failed')"
        ).fetchall()
        running = database.execute("SELECT id, status FROM commands WHERE status = 'running'").fetchall()
    database.close()
    return boxes + running


@on_both
@pytest.mark.timeout(900)
def test_x2_hundreds_of_sandboxes_leave_nothing(server: Server, client: Skerry, runtime: str) -> None:
    def cycle(number: int) -> None:
        with client.create("python", memory_mb=128, network="none" if number % 4 == 0 else "bridge") as box:
            result = box.commands.run(f"echo {number}; echo data > file; sleep 60 &")
            assert (result.stdout, result.exit_code) == (f"{number}\n", 0)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(cycle, range(AT_ONCE * 2)))  # what is made once, and kept, is made here
        eventually("they are gone", lambda: not processes_of(server))
        before, parts, groups = on_the_host(server), of_the_parts(server), len(quota_groups(server))
        memory = {part: server.memory_of(part) for part in ("api", "node")}
        list(pool.map(cycle, range(CYCLES[runtime])))
    eventually("they are gone", lambda: not processes_of(server))
    with suppress(AssertionError):  # what is left is shown below
        eventually("nothing is left", lambda: not more_than(before, server), within_s=20, every_s=0.5)
    assert more_than(before, server) == {}
    # The kernel lets go of a subvolume's own quota group only when it has cleaned up; a later removal takes it away.
    output("btrfs", "subvolume", "sync", str(server.config.pool_dir))
    cycle(1)
    assert len(quota_groups(server)) <= groups
    grown = {what: (parts[what], now) for what, now in of_the_parts(server).items() if now > parts[what] + 6}
    assert not grown, "descriptors or threads are left"
    assert stuck_rows(server) == []
    for part, then in memory.items():
        more = (server.memory_of(part) - then) / (1 << 20)
        print(f"{runtime}: {part} grew by {more:.1f} MB over {CYCLES[runtime]} sandboxes")
        assert more < 30, part
