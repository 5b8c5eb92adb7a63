"""Stop, resume and fork on the node, beside a cold create in the same run: `python -m bench.durable`.

Speaks to a node of its own through its provider, so that what is measured is the node's share alone. Its template is a
busybox.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

from bench.__main__ import print_table
from bench.rows import Row, row

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 9
SIZES = {"20 MB": (20, 1000), "0.8 GB": (800, 40_000)}  # MB, files

sys.path.insert(0, str(ROOT / "tests"))
from node.harness import Node, run, spec  # noqa: E402 - the way in which the tests run a node

from skerry.model.ids import TreeId  # noqa: E402
from skerry.model.sandbox import Limits, SandboxSpec  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.durable", description=__doc__)
    parser.add_argument("--runtime", action="append", choices=["crun", "runsc"], help="both when left out")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("sandboxes need root")
    if "SBXD_BINARY" not in os.environ:
        subprocess.run(["make", "-s", "-C", str(ROOT / "sbxd")], check=True)
        os.environ["SBXD_BINARY"] = str(ROOT / "sbxd" / "build" / "sbxd")
    print_table([one for runtime in chosen.runtime or ["crun", "runsc"] for one in asyncio.run(_all(runtime))])
    return 0


async def _all(runtime: str) -> list[Row]:
    node = Node(runtime, pool_mb=6144)
    await node.start()
    try:
        found: list[Row] = []
        taken: dict[str, dict[str, list[float]]] = {}
        for name, size in SIZES.items():
            source = await _filled(node, *size)
            taken[name] = times = await _rounds(node, source)
            await node.provider.destroy(source.id)
            cold = times["cold"]
            found.append(row(f"stop, {name}", runtime, times["stop"], "ms", at_most=150))
            for verb in ("resume", "fork"):
                what = f"{verb} → first result, {name}"
                found.append(row(what, runtime, times[verb], "ms", floor=cold, at_most_ratio=1.25))
        small, large = (taken[name]["fork"] for name in SIZES)
        found.append(row("fork of 0.8 GB beside 20 MB", runtime, large, "ms", floor=small, at_most_ratio=2.0))
        return found
    finally:
        await node.close()


async def _filled(node: Node, megabytes: int, files: int) -> SandboxSpec:
    """A running sandbox with a workspace of that size, on the disk."""
    source = spec(limits=Limits(memory_mb=512, disk_mb=4096))
    await node.provider.create(source)
    each = (megabytes << 20) // files
    script = (
        f"cd /workspace; i=0; while [ $i -lt {files} ]; do d=d$((i / 500)); mkdir -p $d;"
        f" head -c {each} /dev/urandom > $d/$i; i=$((i + 1)); done; sync"
    )
    exit, _, err = await run(node.provider.guest(source.id), script, deadline_s=1200.0)
    assert exit.code == 0, err
    return source


async def _rounds(node: Node, source: SandboxSpec) -> dict[str, list[float]]:
    """Cold creates, forks, stops and resumes in turn, so that a neighbour's noise falls on all of them."""
    times: dict[str, list[float]] = {"cold": [], "fork": [], "stop": [], "resume": []}
    for generation in range(1, ROUNDS + 1):
        for verb, tree in (("cold", None), ("fork", TreeId(source.id))):
            wanted = spec()
            times[verb].append(await _timed(_first_result(node, wanted, tree)))
            await node.provider.destroy(wanted.id)
        # As much as may have been written a moment ago.
        await run(node.provider.guest(source.id), "head -c 1000000 /dev/urandom > /workspace/fresh")
        times["stop"].append(await _timed(node.provider.stop(source.id, generation)))
        again = replace(source, generation=generation + 1)
        times["resume"].append(await _timed(_first_result(node, again, TreeId(source.id))))
    return times


async def _first_result(node: Node, wanted: SandboxSpec, tree: TreeId | None) -> None:
    await node.provider.create(wanted, tree)
    assert (await run(node.provider.guest(wanted.id), None, "true"))[0].code == 0


async def _timed(work: Awaitable[None]) -> float:
    begin = time.perf_counter()
    await work
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    sys.exit(main())
