"""Writes `src/skerry/sdk/_sync/` from `src/skerry/sdk/_async/`: the blocking half is never written by hand.

`python scripts/generate_sync.py` writes; `--check` writes nothing and fails where the files on disk are stale.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "skerry" / "sdk" / "_async"
TARGET = ROOT / "src" / "skerry" / "sdk" / "_sync"

NAMES = {
    "AsyncSkerry": "Skerry",
    "AsyncSandbox": "Sandbox",
    "AsyncRunningCommand": "RunningCommand",
    "AsyncCommands": "Commands",
    "AsyncFiles": "Files",
    "AsyncHttp": "Http",
    "AsyncKeys": "Keys",
    "AsyncListing": "Listing",
    "AsyncShell": "Shell",
    "AsyncGit": "Git",
    "AsyncSnapshot": "Snapshot",
    "AsyncSnapshots": "Snapshots",
    "AsyncStartup": "Startup",
    "AsyncTrees": "Trees",
    "AsyncUpload": "Upload",
    "AsyncTemplates": "Templates",
    "AsyncTerminal": "Terminal",
    "AsyncTerminals": "Terminals",
    "AsyncAttachment": "Attachment",
    "AsyncWebSocket": "WebSocket",
    "AsyncExitStack": "ExitStack",
    "enter_async_context": "enter_context",
    "connect_async": "connect_sync",
    "AsyncEarlyStream": "EarlyStream",
    "AsyncEarlyBackend": "EarlyBackend",
    "AsyncNetworkStream": "NetworkStream",
    "AsyncNetworkBackend": "NetworkBackend",
    "AsyncClient": "Client",
    "AsyncIterable": "Iterable",
    "_async": "_sync",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asyncio": "time",
    "to_thread": "directly",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "anext": "next",
}
DOCSTRING = "The asynchronous half of the client: the source. `_sync/` is generated from here and never edited."
GENERATED = "The blocking half of the client: generated from `_async/` by `scripts/generate_sync.py`, never edited."


def generate(target: Path) -> None:
    """Write the blocking half into `target`, formatted."""
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch) / "_async"
        staged.mkdir()
        for source in sorted(SOURCE.glob("*.py")):
            (staged / source.name).write_text(source.read_text().replace(DOCSTRING, GENERATED))
        rule = unasync.Rule(f"{scratch}/_async", str(target), additional_replacements=NAMES)
        unasync.unasync_files([str(path) for path in staged.glob("*.py")], [rule])
    config = ROOT / "pyproject.toml"
    for command in (["check", "--fix", "--select", "I", "--quiet"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, "--config", str(config), str(target)], check=True)


def stale(scratch: Path) -> list[str]:
    """Names of files whose generated text differs from what is on disk."""
    generate(scratch)
    fresh = {path.name: path.read_text() for path in scratch.glob("*.py")}
    held = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    return sorted(name for name in fresh.keys() | held.keys() if fresh.get(name) != held.get(name))


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory(dir=TARGET.parent, prefix="_stale_") as scratch:
        names = stale(Path(scratch))
    for name in names:
        print(f"src/skerry/sdk/_sync/{name} is stale: run python scripts/generate_sync.py")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
