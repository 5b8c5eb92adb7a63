"""Skerry: sandboxes for AI agents on machines you own. `import skerry` is the client; the server is `skerry.serve`.

The client's names are imported on first use: `from skerry import Skerry` costs what it uses, `import skerry` nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.sdk import *  # noqa: F403 — the names are listed once, there

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Not `from skerry import sdk`: that asks this function for `sdk` first.
    sdk = import_module("skerry.sdk")
    if name in sdk.__all__:
        return getattr(sdk, name)
    raise AttributeError(f"module 'skerry' has no attribute '{name}'")
