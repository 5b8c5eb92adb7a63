"""`python -m bench [name …]`: run the measurements, print the table, write bench/latest.json."""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import floors
from bench.measures import MEASURES
from bench.rows import Row
from bench.server import bench_server

LATEST = Path(__file__).parent / "latest.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MEASURES)}; all when left out")
    parser.add_argument(
        "--runtime", action="append", choices=["crun", "runc", "runsc"], help="crun and runsc when left out"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in MEASURES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(MEASURES)}")
    if os.geteuid() != 0:
        parser.error("sandboxes need root")
    rows: list[Row] = []
    load_before = os.getloadavg()[0]
    try:
        for runtime in chosen.runtime or ["crun", "runsc"]:
            with bench_server(runtime) as server:
                for name in chosen.names or MEASURES:
                    rows += MEASURES[name](server)
    finally:
        floors.close()
    print_table(rows)
    LATEST.write_text(
        json.dumps(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "kernel": platform.release(),
                "cpus": os.cpu_count(),
                "load_before": round(load_before, 2),
                "rows": [one.as_dict() for one in rows],
            },
            indent=2,
        )
        + "\n"
    )
    return 0


def print_table(rows: list[Row]) -> None:
    """The rows, with their floors and targets."""
    table = Table("what", "runtime", "median", "p95", "floor", "ratio", "target", "ok", "n")
    for one in rows:
        mark = {True: "[green]yes", False: "[red]no", None: ""}[one.ok]
        table.add_row(
            one.name,
            one.runtime,
            f"{one.value:g} {one.unit}",
            "" if one.p95 is None else f"{one.p95:g}",
            "" if one.floor is None else f"{one.floor:g}",
            "" if one.ratio is None else f"{one.ratio:g}",
            one.target,
            mark,
            str(one.n),
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
