"""What all tests share. Tests that start processes elsewhere need PYTHONPATH to hold wherever those stand."""

import os
from pathlib import Path

if "PYTHONPATH" in os.environ:
    _places = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(place).absolute()) for place in _places if place)
