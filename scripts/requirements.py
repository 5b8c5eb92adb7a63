"""Prints the rows of docs/requirements.md that no test names. A test names rows in its function's name: test_f13_….

A name may carry several rows: `test_f13_f14_…`. Exits 0; it is a list to work on, not a gate.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^- ([XOPF]\d+) (.*)$", re.MULTILINE)
TEST = re.compile(r"def test_((?:[xopf]\d+_)+)", re.MULTILINE)


def rows() -> dict[str, str]:
    """Each row's id and its text."""
    return dict(ROW.findall((ROOT / "docs" / "requirements.md").read_text()))


def named() -> set[str]:
    """The rows that tests name."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for names in TEST.findall(path.read_text()):
            found.update(name.upper() for name in names.strip("_").split("_"))
    return found


def main() -> int:
    known, tested = rows(), named()
    for unknown in sorted(tested - known.keys()):
        print(f"a test names {unknown}, which is no row", file=sys.stderr)
    open_rows = [row for row in known if row not in tested]
    for row in open_rows:
        print(f"{row:<4} {known[row][:110]}")
    print(f"{len(known) - len(open_rows)} of {len(known)} rows have a test", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
