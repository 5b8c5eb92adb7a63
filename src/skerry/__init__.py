"""Skerry: sandboxes for AI agents on machines you own. `import skerry` is the client; the server is `skerry.serve`.

The client's names are imported on first use: `from skerry import Skerry` costs what it uses, `import skerry` nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.sdk import *

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # `import skerry.cli` asks for names such as `cli` before it looks for the module: only the client's are answered.
    if not name.startswith("_"):
        from skerry import sdk

        if name in sdk.__all__:
            return getattr(sdk, name)
    raise AttributeError(f"module 'skerry' has no attribute '{name}'")
