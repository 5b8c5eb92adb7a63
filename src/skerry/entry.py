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
    _find_programs()
    from skerry.cli.main import main as run

    try:
        run()
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # between two handlers of its own: there is nothing to put away
    finally:
        # What is left is Python's own end, which would show a traceback.
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave)


def _leave(number: int, frame: object) -> None:
    # Not an exception: the import system would have to carry it through half-loaded modules.
    os._exit(128 + number)


def _find_programs() -> None:
    """Have the administrator's programs in PATH: `su` without a dash gives root the path of a user.

    Without mkfs.btrfs, say, a pool would be had that limits nothing.
    """
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*path, *(where for where in ("/usr/sbin", "/sbin") if where not in path)])
