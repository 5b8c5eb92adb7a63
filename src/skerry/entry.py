"""Where the program `skerry` begins: an interrupt while its parts are still being loaded ends it without a traceback.

Imports nothing of its own before that holds.
"""

import os
import signal

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Load the command line and run it."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from skerry.cli.main import main as run

    run()


def _leave(number: int, frame: object) -> None:
    # Not an exception: the import system would have to carry it through half-loaded modules.
    os._exit(128 + number)
