"""What all tests share: a PYTHONPATH that holds wherever their processes stand, and a built sbxd in SBXD_BINARY."""

import os
import subprocess
from pathlib import Path

if "PYTHONPATH" in os.environ:
    _places = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(place).absolute()) for place in _places if place)

if "SBXD_BINARY" not in os.environ:
    _sbxd = Path(__file__).parents[1] / "sbxd"
    subprocess.run(["make", "-s", "-C", str(_sbxd)], check=True, timeout=300)
    os.environ["SBXD_BINARY"] = str(_sbxd / "build" / "sbxd")
