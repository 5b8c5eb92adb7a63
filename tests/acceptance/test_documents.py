"""What README and the guides show is run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from acceptance.servers import ROOT, Server

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


def blocks(page: Path, language: str) -> str:
    """All blocks of a language on a page, in order: they build on one another."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, server: Server, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks(page, "python")],
        capture_output=True,
        text=True,
        env={**server.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if page.name == "README.md":
        assert done.stdout == "42\n 0\n2 data.csv\n\n"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sh")], ids=lambda page: page.name)
def test_the_shell_of_a_page_runs(page: Path, server: Server, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", blocks(page, "sh")],
        capture_output=True,
        text=True,
        env={**server.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
