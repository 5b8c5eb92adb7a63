"""Pages that the code writes say what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_current() -> None:
    script = ROOT / "scripts" / "generate_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_requirement_rows_that_tests_name_exist() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "requirements.py")], capture_output=True, text=True)
    assert done.returncode == 0
    assert "which is no row" not in done.stderr
