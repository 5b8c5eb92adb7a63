"""From a Debian with nothing on it to code in a sandbox, on each release that is promised."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.fresh_system import TOOLS, FreshSystem
from acceptance.test_documents import PAGES, blocks

pytestmark = [
    pytest.mark.long,
    pytest.mark.runtime,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces and sandboxes"),
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"),
]

README = next(page for page in PAGES if page.name == "README.md")
PYTHON = {"bookworm": "3.11", "trixie": "3.13"}


@pytest.fixture(params=list(PYTHON))
def system(request: pytest.FixtureRequest) -> Iterator[FreshSystem]:
    with FreshSystem(request.param) as system:
        yield system


def test_one_command_leads_from_an_empty_debian_to_code_in_a_sandbox(system: FreshSystem) -> None:
    first = system.run("./skerry", "up", timeout=1500)
    assert "Active runtime: runsc" in first.stdout
    for step in ("install runsc", "build sbxd", "build the template python", "run Python in it", "destroy it"):
        assert re.search(rf"^  {step} +[\d.]+ m?s", first.stderr + first.stdout, re.MULTILINE), first.stdout
    assert system.run(f"{system.home}/venv/bin/python", "-V").stdout.split()[1].startswith(PYTHON[system.suite])

    _the_example_of_the_readme_runs(system)
    assert system.run("./skerry", "run", "--", "python3", "-c", "print(6 * 7)").stdout == "42\n"
    assert "Sandboxes can run here, on runsc." in system.run("./skerry", "doctor", timeout=120).stdout

    begun = time.monotonic()
    system.run("./skerry", "down", "--all")
    second = system.run("./skerry", "up", timeout=120)
    assert time.monotonic() - begun < 60
    assert not re.search("^  (install|build|make)", second.stderr + second.stdout, re.MULTILINE), second.stderr

    system.run("./skerry", "down", "--all")
    left = system.run("cat", "/proc/mounts").stdout
    assert system.home not in left
    assert not [f for f in Path("/sys/block").glob("loop*/loop/backing_file") if _names(f, system.home)]


def _the_example_of_the_readme_runs(system: FreshSystem) -> None:
    (system.root / "root" / "example.py").write_text(blocks(README, "python"))
    script = """
        python3 -m venv /root/client && /root/client/bin/pip install --quiet .
        eval "$(./skerry client-env)"
        exec /root/client/bin/python -W error /root/example.py
    """
    assert system.run("sh", "-euc", script, timeout=300).stdout == "42\n 0\n2 data.csv\n\n"


def _names(file: Path, home: str) -> bool:
    try:
        return home in file.read_text()
    except OSError:
        return False
